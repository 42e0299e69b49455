"""The tests, in directories of their own from the first import on."""

from tests.support.places import PLACES as PLACES
