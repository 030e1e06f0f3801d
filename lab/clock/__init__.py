"""The virtual clock: a patch series on QEMU, its test guest and its benchmark."""
