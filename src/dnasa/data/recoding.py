"""Turns a site's table into the form that all sites agreed on: names of columns, units, spellings, missing values, labels."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from dnasa.core import InputError
from dnasa.data.columns import MISSING, first_row, to_numbers, to_words
from dnasa.files import read_model

Word = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, int) else value)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
FORM = "A file of --recode has the sections columns, missing, units, categories, labels and order, and sites.NAME for one site"


class Recode(BaseModel):
    """The file `recode.toml`; it is stored with the model, so that new rows are recoded too."""

    model_config = ConfigDict(extra="forbid")
    columns: dict[str, str] = {}  # the name in the table: the name that all sites use
    missing: dict[str, list[Finite | str]] = {}  # of a column, what stands for a missing value
    units: dict[str, dict[Literal["factor", "offset"], Finite]] = {}  # a number becomes factor * number + offset
    categories: dict[str, dict[str, Word]] = {}  # of a column, a spelling: the one that all sites use
    labels: dict[str, Word] = {}  # a label of the target: its class
    order: tuple[str, ...] = ()  # of the classes, the event last; sorted where there is none
    sites: dict[str, "Recode"] = {}  # what applies at one site only

    @field_validator("units")
    @classmethod
    def _no_zero(cls, units: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        if any(unit.get("factor") == 0 for unit in units.values()):
            raise ValueError("must have factors other than 0")
        return units

    @field_validator("order")
    @classmethod
    def _distinct(cls, order: tuple[str, ...]) -> tuple[str, ...]:
        if len({*order}) < len(order):
            raise ValueError("must name each class once")
        return order

    def at(self, site: str) -> "Recode":
        """What applies at a site: what is for all, and its own."""
        own = self.sites.get(site, Recode())
        parts = {
            name: getattr(self, name) | getattr(own, name) for name in Recode.model_fields if name not in ("sites", "order")
        }
        return Recode(**parts, order=self.order)

    def with_sites(self, names: Collection[str]) -> "Recode":
        """With a section for each site, perhaps an empty one."""
        return self.model_copy(update={"sites": {name: self.sites.get(name, Recode()) for name in sorted(names)}})

    def followed_by(self, classes: Mapping[str, Any]) -> "Recode":
        """Maps labels as this file does, then as these labels say."""

        def then(labels: Mapping[str, Any]) -> dict[str, Any]:
            return {label: classes.get(name, name) for label, name in labels.items()}

        sites = {name: site.model_copy(update={"labels": then(site.labels)}) for name, site in self.sites.items()}
        order = tuple(classes) if [*classes] == [*classes.values()] else ()
        return self.model_copy(
            update={"labels": then(self.labels) | dict(classes), "sites": sites, "order": order or self.order}
        )

    @property
    def named(self) -> set[str]:
        """The classes that labels name, of any site."""
        return {*self.labels.values()}.union(*(site.named for site in self.sites.values()))

    @property
    def changes_inputs(self) -> bool:
        """Whether a column other than the target is recoded, somewhere."""
        own = self.columns or self.missing or self.units or self.categories
        return bool(own) or any(site.changes_inputs for site in self.sites.values())

    @property
    def classes(self) -> tuple[Any, ...]:
        """The classes that the labels name: numbers if all of them are."""
        names = pd.Series(sorted({*self.labels.values(), *self.order}), dtype=object)
        numbers = pd.to_numeric(names, errors="coerce")
        return tuple(names if numbers.isna().any() else numbers.astype(float))

    def table(self, frame: pd.DataFrame, what: str | None = None) -> pd.DataFrame:
        """A table recoded. In one that is called `what`, a column that is named here and not there is an error."""
        if any(site.changes_inputs for site in self.sites.values()):
            raise InputError(
                f"Sites were recoded differently: give --site (in Python, load(..., site=)), one of {', '.join(self.sites)}."
            )
        result = self._renamed(frame, what)
        for name in {**self.missing, **self.units, **self.categories}:
            if name in result:
                result[name] = self._column(name, result[name])
            elif what is not None:
                raise InputError(f"{what} has no column '{name}', which the file of --recode names: correct it.")
        return result

    def _renamed(self, frame: pd.DataFrame, what: str | None = None) -> pd.DataFrame:
        names = [str(name) for name in frame.columns]
        for old, new in self.columns.items():
            if (old in names) == (new in names) and what is not None:
                has = "both columns" if old in names else "neither column"
                raise InputError(f"{what} has {has} '{old}' and '{new}': correct [columns] in the file of --recode.")
        renamed = {old: new for old, new in self.columns.items() if new not in names}
        return frame.set_axis([renamed.get(name, name) for name in names], axis=1)

    def used(self, frame: pd.DataFrame, labels: pd.Series) -> dict[str, bool]:
        """Whether a row of a table has what each entry replaces; `labels` is the target column before it has classes."""
        frame, found = self._renamed(frame), dict[str, bool]()
        for name, values in self.missing.items():
            found |= {
                f"missing.{name} = {value:{'' if isinstance(value, str) else 'g'}}": value in set(frame[name])
                for value in values
            }
        sections = {f"categories.{name}": (words, frame[name]) for name, words in self.categories.items()}
        for section, (words, column) in (sections | {"labels": (self.labels, labels)}).items():
            present = {*to_words(column)}
            found |= {f"{section}.{word} = {new}": word in present for word, new in words.items() if word != new}
        return found

    def _column(self, name: str, column: pd.Series) -> pd.Series:
        column = column.mask(column.isin(self.missing.get(name, [])))
        if unit := self.units.get(name):
            numbers = unit.get("factor", 1.0) * to_numbers(name, column, allow_missing=True) + unit.get("offset", 0.0)
            column = pd.Series(numbers, column.index)
        if words := self.categories.get(name):
            column = pd.Series([words.get(word, word) for word in to_words(column)], column.index, object)
        column = column.mask(column == MISSING)
        are_texts = column.notna().any() and column.dropna().map(type).eq(str).all()
        numbers = pd.to_numeric(column, errors="coerce") if are_texts else column
        return numbers if numbers.notna().sum() == column.notna().sum() else column  # as in a file without the other words

    def target(self, labels: pd.Series) -> pd.Series:
        """The target column with the classes as names; one that is not named here is an error."""
        if not self.labels:
            return labels
        words = pd.Series(to_words(labels), labels.index, name=labels.name)
        odd = (labels.notna() & ~words.isin({*self.labels, *self.labels.values()})).to_numpy()
        if odd.any():
            raise InputError(
                f"Column '{labels.name}' has the label '{words[odd].iloc[0]:.40}' ({first_row(labels, odd)}), which --labels "
                "and [labels] in the file of --recode do not name: correct it, or add it. A file for several targets has "
                "[categories.TARGET] instead of [labels].",
                "a label that it did not name",
            )
        classes = words.map(lambda word: self.labels.get(word, word)).where(labels.notna())
        return pd.to_numeric(classes) if isinstance(self.classes[0], float) else classes


def unused_warnings(used: Iterable[Mapping[str, bool]]) -> list[str]:
    """A sentence, for the owner of these tables, on each entry that replaces nothing in any of them."""
    found = Counter[str]()
    for of_table in used:
        found.update(of_table)
    return [f"'{entry}' of --labels or --recode matches no row: is it misspelled?" for entry in found if not found[entry]]


def as_recode(given: Any, labels: str | None = None) -> Recode | None:
    """Read a file, or take its contents or a Recode; `labels` adds to it, as "no=0,yes=1", or "no,yes" to name the classes."""
    if given is None and labels is None:
        return None
    recode = read_model({} if given is None else given, "recoding", Recode, FORM)
    pairs = [[word.strip() for word in part.split("=")] for part in (labels or "").split(",") if part.strip()]
    if not all(len(pair) < 3 and all(pair) for pair in pairs):
        raise InputError(f"--labels takes labels and their classes, as in no=0,yes=1 or no,yes; not '{labels}'.")
    classes = {pair[0]: pair[-1] for pair in pairs}
    if classes and (others := sorted(recode.named - {*classes, *classes.values()})):
        raise InputError(f"--labels {labels} does not name '{others[0]:.40}', a class of the file of --recode: add it.")
    return recode.followed_by(classes)
