"""Compile kernels to machine code, and cache it."""
