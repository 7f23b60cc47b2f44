"""How kernels become machine code, and where that is kept."""
