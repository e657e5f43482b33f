"""The wiring: the only package that names concrete classes and reads settings. Begin with `kernel.build`."""
