"""Compile kernels to machine code, and cache it; `byte_arrays` is for kernels of all packages."""
