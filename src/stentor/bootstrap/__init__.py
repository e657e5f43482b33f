"""The only place that names concrete classes and reads settings."""

from stentor.bootstrap.kernel import Kernel
from stentor.bootstrap.service import Service, application, open_driver, open_service
from stentor.bootstrap.wiring import build

__all__ = ["Kernel", "Service", "application", "build", "open_driver", "open_service"]
