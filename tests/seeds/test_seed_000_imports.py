"""Seed 000's imports with nothing but their root changed: ``cosmos_rl`` is ``hookline``."""

import hookline
import hookline.status


def test_imports_of_the_document_are_the_public_names():
    from hookline.launcher.worker_entry import main
    from hookline.tools.custom_hooks import (
        TAOStatusLogger,
        create_status_logger,
        create_training_hooks,
        create_validation_hooks,
    )

    assert main is hookline.main
    imported = [TAOStatusLogger, create_status_logger, create_training_hooks, create_validation_hooks]
    assert imported == [getattr(hookline.status, each.__name__) for each in imported]  # type: ignore[attr-defined]
