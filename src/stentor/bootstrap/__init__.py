"""The only place that names concrete classes and reads settings."""

from stentor.bootstrap.kernel import Kernel, Service, application, build, open_driver, open_service

__all__ = ["Kernel", "Service", "application", "build", "open_driver", "open_service"]
