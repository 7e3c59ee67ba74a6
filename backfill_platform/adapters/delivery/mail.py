"""E-mail through an SMTP server."""

import smtplib
import socket
import ssl
from collections.abc import Sequence
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Literal

from backfill_platform.adapters.delivery.channel import TRY_SECONDS
from backfill_platform.domain.notification import Notification
from backfill_platform.errors import ChannelUnavailable, Undeliverable

Security = Literal["none", "starttls", "tls"]


class Mail:
    """Mails the message as plain text. `timeout` is in seconds, for connecting and for each answer of the server."""

    name = "email"

    def __init__(
        self,
        *,
        host: str,
        port: int,
        sender: str,
        to: Sequence[str],
        security: Security,
        user: str | None = None,
        password: str = "",
        timeout: float = TRY_SECONDS,
    ) -> None:
        self._host, self._port, self._security = host, port, security
        self._sender, self._to = sender, tuple(to)
        self._user, self._password = user, password
        self._timeout = timeout

    def send(self, message: Notification) -> None:
        """Mail it to everybody of the recipient; some of them refused counts as not delivered."""
        mail = EmailMessage()
        mail["Subject"] = message.subject
        mail["From"] = self._sender
        mail["To"] = ", ".join(self._to)
        mail["Date"] = formatdate()
        mail["Message-ID"] = make_msgid(domain=self._sender.rpartition("@")[2] or "localhost")
        mail["Auto-Submitted"] = "auto-generated"  # keeps out-of-office answers away
        mail.set_content(message.text, cte="quoted-printable")  # not every server takes 8 bits
        try:
            with self._connect() as server:
                if self._security == "starttls":
                    server.starttls(context=ssl.create_default_context())
                if self._user is not None:
                    server.login(self._user, self._password)
                refused = server.send_message(mail)
        # Servers repeat what they were told: of these errors only the numbers go on.
        except smtplib.SMTPRecipientsRefused as error:
            raise _refusal("every recipient", [code for code, _ in error.recipients.values()]) from None
        except smtplib.SMTPResponseException as error:
            raise _refusal(type(error).__name__, [error.smtp_code]) from None
        except smtplib.SMTPNotSupportedError:
            raise Undeliverable("the mail server does not offer what `security` or `user` asks for") from None
        except ssl.SSLCertVerificationError:
            raise Undeliverable("the certificate of the mail server is not trusted") from None
        except (smtplib.SMTPException, OSError) as error:
            raise ChannelUnavailable(f"the mail server does not answer ({type(error).__name__})") from None
        if refused:
            raise Undeliverable(f"the mail server refused {len(refused)} of {len(self._to)} recipients")

    def _connect(self) -> smtplib.SMTP:
        # The name is given because smtplib would look up its own, and wait for it.
        name = socket.gethostname()
        if self._security == "tls":
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(self._host, self._port, name, timeout=self._timeout, context=context)
        return smtplib.SMTP(self._host, self._port, name, timeout=self._timeout)


def _refusal(what: str, codes: Sequence[int]) -> ChannelUnavailable | Undeliverable:
    """In SMTP, codes from 500 are for good."""
    shown = ", ".join(map(str, sorted(set(codes))))
    if all(code >= 500 for code in codes):
        return Undeliverable(f"the mail server refused ({what}: {shown})")
    return ChannelUnavailable(f"the mail server put it off ({what}: {shown})")
