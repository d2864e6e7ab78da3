"""``python -m benchmarks.collections timm``: how many networks of an installed collection are translated.

One classification network of every file of torchvision, the first by name, Transformers included; of timm, ConvNets of every
family. A network counts as translated if its counterpart, with four filters per layer, gives finite scores for an image. The
others are listed with the reason.
"""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from rich.console import Console
from torch import nn

import torchckn
from torchckn.errors import CKNError

Networks = Iterator[tuple[str, Callable[[], nn.Module]]]

#: its ConvNets, one of each family; networks with attention are left out
TIMM = """
convmixer_768_32 convnext_atto convnextv2_atto cs3darknet_s cspdarknet53 cspresnet50 darknet53 densenet121 dla34
dla46_c dm_nfnet_f0 dpn48b dpn68 ecaresnet50t efficientnet_b0 efficientnet_lite0 efficientnetv2_rw_t ese_vovnet19b_dw
fasternet_t0 fbnetc_100 focalnet_tiny_srf gernet_s ghostnet_050 ghostnetv2_100 hardcorenas_a hgnet_tiny hgnetv2_b0
hrnet_w18_small inception_next_tiny inception_resnet_v2 inception_v3 inception_v4 lcnet_035 legacy_seresnet18
legacy_xception mixnet_s mnasnet_small mobilenetv2_050 mobilenetv3_small_050 mobilenetv4_conv_small mobileone_s0
nasnetalarge nf_resnet26 nfnet_f0 pnasnet5large poolformer_s12 rdnet_tiny regnetx_002 regnety_002 regnetz_b16
repghostnet_050 repvgg_a0 res2net50_26w_4s resnest14d resnet18 resnet26d resnetblur50 resnetv2_50 resnetv2_50x1_bit
resnext26ts rexnet_100 selecsls42 senet154 seresnet18 skresnet18 spnasnet_100 starnet_s050 tf_efficientnet_b0
tinynet_e tresnet_m vgg11_bn vovnet39a wide_resnet50_2 xception41
"""


def torchvision() -> Networks:
    models = importlib.import_module("torchvision.models")
    files: dict[str, str] = {}
    for name in models.list_models(module=models):
        files.setdefault(models.get_model_builder(name).__module__, name)
    for name in files.values():
        yield name, partial(models.get_model, name, weights=None)


def timm() -> Networks:
    library = importlib.import_module("timm")
    for name in TIMM.split():
        yield name, partial(library.create_model, name, pretrained=False)


COLLECTIONS: dict[str, Callable[[], Networks]] = {f.__name__: f for f in (torchvision, timm)}


def outcome(net: nn.Module, size: int) -> str:
    """What became of a network: "" if it was translated, or the reason why not."""
    try:
        ckn = torchckn.translate(net, (3, size, size), filters=4).eval()
        with torch.inference_mode():
            scores = ckn(torch.rand(1, 3, size, size))
    except CKNError as error:
        return str(error)
    return "" if torch.isfinite(scores).all() else "its scores are not finite"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collections", description=__doc__)
    parser.add_argument("collection", choices=COLLECTIONS)
    parser.add_argument("networks", nargs="*", help="only these")
    parser.add_argument("--size", type=int, default=224, help="height and width of the images")
    given = parser.parse_intermixed_args()
    console, translated, tried = Console(soft_wrap=True, highlight=False), 0, 0
    warnings.simplefilter("ignore")
    for name, build in COLLECTIONS[given.collection]():
        if given.networks and name not in given.networks:
            continue
        net, start = build().eval(), time.perf_counter()
        why = outcome(net, given.size)
        tried, translated = tried + 1, translated + (not why)
        console.print(f"{name}: {why or 'translated'} ({time.perf_counter() - start:.1f} s)", markup=False)
    console.print(f"{translated} of {tried} translated")


if __name__ == "__main__":
    main()
