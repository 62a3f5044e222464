"""The same on DBOS. Steps that ended are kept; the one that was under way runs again."""

from __future__ import annotations

import sys

from dbos import DBOS, SetWorkflowID

from examples.mail_twice.mail import draft, send

DBOS(config={"name": "mail", "system_database_url": f"sqlite:///{sys.argv[1]}.dbos" if len(sys.argv) > 1 else "sqlite:///:memory:", "log_level": "CRITICAL"})
write = DBOS.step()(draft)
post = DBOS.step()(send)


@DBOS.workflow()  # type: ignore[untyped-decorator, unused-ignore]
def mail(customer: str) -> None:
    text = write(customer)
    post(customer, text)


if __name__ == "__main__":
    DBOS.launch()
    with SetWorkflowID("ada"):
        DBOS.start_workflow(mail, "Ada").get_result()
    DBOS.destroy()
