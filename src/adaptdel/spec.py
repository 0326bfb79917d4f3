"""Noise written in one word, as on the command line: ``adaptdel:p_min=0.9,k=23``."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from adaptdel.noise import Deletion, Masking, Noise, NoNoise
from adaptdel.rates import BinnedRate, FixedRate, InterpolatedRate, LengthRate

_BUILDERS: dict[str, tuple[Callable[..., Noise], tuple[str, ...], tuple[str, ...]]] = {
    # name: what it builds, its required and its optional arguments
    "adaptdel": (lambda **a: Deletion(LengthRate(**a)), ("p_min", "k"), ("p_max",)),
    "adaptdel+": (lambda **a: Deletion(BinnedRate(**a)), ("edges", "keep"), ()),
    "interpolated": (lambda **a: Deletion(InterpolatedRate(**a)), ("lengths", "keep"), ()),
    "cert-ed": (lambda **a: Deletion(FixedRate(**a)), ("p",), ()),
    "ranmask": (Masking, ("fraction",), ()),
    "nosmooth": (NoNoise, (), ()),
}
_ALIASES = {"fixed": "cert-ed", "rs-del": "cert-ed", "length": "adaptdel", "binned": "adaptdel+", "masking": "ranmask"}
_LISTS = ("edges", "keep", "lengths")

EXAMPLES = """\
adaptdel:p_min=0.9,k=23               AdaptDel, psi = max(p_min, p_max * (1 - k/n))
cert-ed:p=0.9                         a fixed rate (also: rs-del, fixed)
adaptdel+:edges=0/137/230,keep=4/9/6  AdaptDel+, a kept length for each bin
interpolated:lengths=68/183,keep=4/9  AdaptDel+ without jumps
ranmask:fraction=0.9                  RanMASK (--ops sub)
nosmooth                              no noise"""


def noise_from_spec(text: str) -> Noise:
    """Read a noise from one word; the values of a list are separated by slashes.

    >>> noise_from_spec("adaptdel:p_min=0.9,k=23")
    Deletion(rate=LengthRate(p_min=0.9, k=23, p_max=1.0))
    >>> noise_from_spec("adaptdel+:edges=0/137,keep=4/9")
    Deletion(rate=BinnedRate(edges=(0, 137), keep=(4, 9)))
    """
    if not isinstance(text, str):
        raise ValueError(f"rate must be a text such as adaptdel:p_min=0.9,k=23, got {text!r}")
    name, _, rest = text.strip().partition(":")
    name = _ALIASES.get(name.lower(), name.lower())
    if name not in _BUILDERS:
        near = get_close_matches(name, [*_BUILDERS, *_ALIASES], n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"rate must begin with one of {', '.join(_BUILDERS)}, got {text!r}{hint}")
    build, required, optional = _BUILDERS[name]
    arguments: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in required + optional:
            accepted = ", ".join(f"{known}=..." for known in required + optional) or "nothing after its name"
            raise ValueError(f"rate {name} takes {accepted}, got {part!r}")
        if key in arguments:
            raise ValueError(f"rate {name} takes {key} once, got it twice in {text!r}")
        arguments[key] = [_number(key, one) for one in value.split("/")] if key in _LISTS else _number(key, value)
    for key in required:
        if key not in arguments:
            raise ValueError(f"rate {name} needs {key}=..., got {text!r}")
    return build(**arguments)


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{key} must be a number, got {text!r}") from None
