"""Sends e-mail over SMTP. Passwords travel over TLS only."""

from __future__ import annotations

import smtplib
import socket
import ssl
from email.message import EmailMessage
from email.utils import formatdate, make_msgid

from stentor.core.clock import SECOND
from stentor.core.settings.alerts import SmtpServer

TIMEOUT_SECONDS = 60.0
"""Some servers keep a sender waiting on purpose."""


class MailError(Exception):
    """The mail server did not take a message; the text says why and contains no secret."""


class Mailer:
    """Sends to fixed recipients. `sender` empty means `stentor@` and the name of this machine."""

    def __init__(self, server: SmtpServer, recipients: tuple[str, ...], sender: str) -> None:
        self._server, self.recipients = server, recipients
        self._sender = sender or f"stentor@{socket.getfqdn()}"

    def make_message_id(self, unique: str) -> str:
        """Return the `Message-ID` of a message that is known here by a unique id."""
        return f"<{unique}@{self._sender.rpartition('@')[2]}>"

    def send(
        self, subject: str, text: str, message_id: str | None = None, date_us: int | None = None
    ) -> tuple[str, ...]:
        """Send a message, wait until the server has taken it, and return the recipients that it refused; blocks.

        Raises MailError if it was accepted for no recipient.

        A message that may have been sent before has the same `message_id` and date (microseconds) again, by which
        mail servers and readers recognize it. Without them it is a new one.
        """
        message = EmailMessage()
        message["Subject"], message["From"], message["To"] = subject, self._sender, ", ".join(self.recipients)
        message["Date"] = formatdate(None if date_us is None else date_us / SECOND)
        message["Message-ID"] = message_id or make_msgid(domain=self._sender.rpartition("@")[2])
        # Prevents automatic replies, such as vacation notices.
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(text)
        try:
            with self._connect() as connection:
                refused = connection.send_message(message)
        except smtplib.SMTPAuthenticationError as error:
            raise MailError(f"the mail server refused the user name or the password ({error.smtp_code})") from None
        except smtplib.SMTPRecipientsRefused as error:
            raise MailError(f"the mail server refused {', '.join(sorted(error.recipients))}") from None
        except UnicodeError:
            # smtplib sends ASCII. The original error is dropped, because it contains a character of the password.
            reason = "the mail server's host, user name or password is invalid: only ASCII characters can be sent"
            raise MailError(reason) from None
        except (smtplib.SMTPException, OSError) as error:
            server = f"{self._server.host}:{self._server.port}"
            raise MailError(f"the mail server {server} did not accept the message: {error}") from None
        return tuple(sorted(refused))

    def _connect(self) -> smtplib.SMTP:
        server, context = self._server, ssl.create_default_context()
        if server.tls:
            connection: smtplib.SMTP = smtplib.SMTP_SSL(
                server.host, server.port, timeout=TIMEOUT_SECONDS, context=context
            )
        else:
            connection = smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.ehlo()
            if not server.tls and connection.has_extn("starttls"):
                connection.starttls(context=context)
                connection.ehlo()
            elif not server.tls and server.user:
                raise MailError("the mail server offers no TLS, so the password was not sent: use smtps://")
            if server.user:
                connection.login(server.user, server.password)
        except BaseException:
            connection.close()
            raise
        return connection
