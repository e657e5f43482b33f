"""Check of the provider with which people sign in: whether it answers, and describes itself as the setting says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from stentor.auth.oidc.provider import OidcProvider
from stentor.cli.inspection import CheckContext, CheckFinding
from stentor.core.clock import SystemClock
from stentor.core.errors import ServiceUnavailable
from stentor.core.settings.sign_in import SignInSettings


def check_provider(context: CheckContext) -> Iterator[CheckFinding]:
    settings = context.settings.oidc
    if not settings.issuer:
        yield CheckFinding("ok", "sign-in", "With keys; SERVICE_OIDC_ISSUER adds an identity provider.")
        return
    try:
        keys = asyncio.run(_count_keys(settings))
    except ServiceUnavailable as error:
        yield CheckFinding("problem", "sign-in", error.message)
        return
    if not keys:
        yield CheckFinding("problem", "sign-in", f"{settings.issuer} has no key with which it could sign ID tokens.")
    else:
        text = f"{settings.issuer} answers. Register there: <URL of the dashboard>/sign-in/callback"
        yield CheckFinding("ok", "sign-in", text)


async def _count_keys(settings: SignInSettings) -> int:
    provider = OidcProvider(settings, SystemClock())
    try:
        return await provider.count_keys()
    finally:
        await provider.close()
