"""The pages: a module for each noun, with a function for each page and action."""

from __future__ import annotations

from ottla.console.pages import (
    access_control,
    brokers,
    clients,
    groups,
    messages,
    pipeline,
    plots,
    reassignments,
    sign_in,
    topics,
    transactions,
    why,
)
from ottla.console.pages.page import Page

PAGES: tuple[Page, ...] = (
    *brokers.PAGES,
    *topics.PAGES,
    *messages.PAGES,
    *groups.PAGES,
    *clients.PAGES,
    *transactions.PAGES,
    *reassignments.PAGES,
    *access_control.PAGES,
    *why.PAGES,
    *pipeline.PAGES,
    *plots.PAGES,
    *sign_in.PAGES,
)
"""All pages, by their paths."""

__all__ = ["PAGES", "Page"]
