"""The wiring: the only package that names concrete classes and reads settings. Begin with `kernel.build`."""

from stentor.bootstrap.kernel import Kernel, build
from stentor.bootstrap.service import Service, application, open_driver, open_service

__all__ = ["Kernel", "Service", "application", "build", "open_driver", "open_service"]
