"""The laboratory of Heddle: real kernels, modelled machines, virtual time, honest statistics."""
