"""Where the configuration of a transformers model comes from: a file, the table, or the hub, in this order.

Only a configuration is ever fetched; weights are not.  ``--model-arg`` sets its fields before the configuration is
made, so that what the library derives from them (the number of key-value heads, the kind of each layer) follows.
"""

import json
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from sweeper.architectures import architecture, architecture_names
from sweeper.errors import UnknownName, UsageError
from sweeper.model_names import config_file

__all__ = ["configuration_of"]

_HUB_TIMEOUT_S = 5.0
# One entry a layer: of another number of layers, the library says it again.
_ONE_A_LAYER = ("layer_types", "mlp_layer_types")
_LAYERS = frozenset({"num_hidden_layers", "num_layers", "n_layer", "n_layers"})


def configuration_of(name: str, file: str | None, fields: Mapping[str, Any]) -> Any:
    """Return the ``PreTrainedConfig`` of ``name``, its ``fields`` as given; ``architectures`` in it names the class.

    Raises ``UsageError`` where there is none, or a field is none of it.
    """
    kept, where = _kept(name, file)
    model_type = _model_type(kept, where)
    _check_fields(model_type, kept, fields)
    if _LAYERS & fields.keys():
        kept = {key: value for key, value in kept.items() if key not in _ONE_A_LAYER}
    return _make(model_type, {**kept, **fields}, where)


def _kept(name: str, file: str | None) -> tuple[dict[str, Any], str]:
    """The fields of a configuration as they are written down, and where that is."""
    if file is not None:
        return _read(Path(file)), file
    if (known := architecture(name)) is not None:
        fields = {**known.config, "model_type": known.model_type, "architectures": [known.class_name]}
        return fields, f"hf:{name}"
    if (here := config_file(f"hf:{name}", None)) is not None:
        return _read(here), str(here)
    return _of_hub(name), f"hf:{name}"


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise UsageError(
            f"cannot read {path}: {problem.strerror or problem}", hint="give the config.json of a transformers model"
        ) from None
    except ValueError as problem:
        raise UsageError(
            f"{path} is not JSON: {problem}", hint="give the config.json of a transformers model"
        ) from None
    if not isinstance(kept, dict):
        raise UsageError(f"{path} holds no JSON object", hint="give the config.json of a transformers model")
    return kept


def _of_hub(name: str) -> dict[str, Any]:
    from transformers import PretrainedConfig

    try:
        kept, _ = PretrainedConfig.get_config_dict(name, local_files_only=True)
    except OSError:  # not among the files that the library has kept
        kept = _fetch(name)
    if not kept:
        raise UsageError(f"hf:{name} has no configuration", hint="give one: --config FILE.json")
    return dict(kept)


def _fetch(name: str) -> Any:
    from transformers import PretrainedConfig

    guesses = UnknownName("model", name, architecture_names(), listing="`sweep models hf:` lists what needs no network")
    if not _hub_answers():
        raise UsageError(
            f"hf:{name} is in no table here, and the hub of its configuration cannot be reached",
            hint=f"give its configuration: --config FILE.json; {guesses.hint}",
        )
    try:
        kept, _ = PretrainedConfig.get_config_dict(name)
    except OSError as problem:  # no such name, or one that needs a login
        first = str(problem).strip().splitlines()[0]
        raise UsageError(f"hf:{name}: {first}", hint=f"give --config FILE.json; {guesses.hint}") from None
    return kept


def _hub_answers() -> bool:
    """Asked once and shortly: the library itself tries for half a minute before it says so."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        with urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=_HUB_TIMEOUT_S):
            return True
    except HTTPError:  # an answer all the same
        return True
    except OSError:
        return False


def _model_type(kept: Mapping[str, Any], where: str) -> str:
    import transformers

    if isinstance(found := kept.get("model_type"), str):
        return found
    for name in _architectures(kept):
        config_class = getattr(getattr(transformers, name, None), "config_class", None)
        if config_class is not None:
            return str(config_class.model_type)
    raise UsageError(
        f"{where} does not say what it configures",
        hint='it needs "model_type", or a class of transformers in "architectures"',
    )


def _architectures(kept: Mapping[str, Any]) -> Iterable[str]:
    found = kept.get("architectures") or ()
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _check_fields(model_type: str, kept: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Raises ``UnknownName`` for a field that this configuration has not: the library would keep it and not look."""
    from transformers import AutoConfig

    try:
        default = AutoConfig.for_model(model_type)
    except ValueError:
        listing = "does the installed transformers know it? upgrade it, or choose another"
        raise UnknownName("type of model in transformers", model_type, _model_types(), listing=listing) from None
    known = {*default.to_dict(), *default.attribute_map, *kept}
    for field in fields:
        if field not in known:
            raise UnknownName(f"argument of {model_type}", field, sorted(known), listing="its configuration has others")


def _model_types() -> tuple[str, ...]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return tuple(CONFIG_MAPPING_NAMES)


def _make(model_type: str, fields: Mapping[str, Any], where: str) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    rest = {key: value for key, value in fields.items() if key != "model_type"}
    try:
        return AutoConfig.for_model(model_type, **rest)
    except (TypeError, ValueError, StrictDataclassError) as problem:  # the library's own checks of its fields
        first = " ".join(str(problem).split())
        raise UsageError(f"{where}: {first}", hint="correct the configuration, or the --model-arg") from None
