"""The values a protocol sets: model, budget, numerics, padding. Every field is resolved, printed and recorded."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

Probability = Annotated[float, Field(ge=0, lt=1)]


def _listed(value: Any) -> Any:
    return [part for part in value.split(",") if part] if isinstance(value, str) else value


def _or_none(value: Any) -> Any:
    return None if value == "none" else value


#: Of hidden layers, in order: [512, 256], or on the command line 512,256.
Widths = Annotated[tuple[PositiveInt, ...], BeforeValidator(_listed)]


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelConfig(_Config):
    """The encoder and the head.

    Attributes:
        mlp: hidden width of the feed-forward part.
        qkv: width of queries, keys and values, all heads together; none = dim.
        qkv_bias: their projections, and the one that joins the heads, have a bias.
        attention_dropout: drops attention weights, in a mechanism that has them at hand; others are refused.
        head_hidden: widths of hidden layers in front of the answer, with ReLU behind each; the answer's own is linear.
        match: what the head sees of two documents a and b: products = [a, b, a * b, a - b], or pair = [a, b].
        causal: each mechanism is asked for its causal form, in which a row sees itself and earlier rows only.
    """

    dim: PositiveInt = 64
    heads: PositiveInt = 2
    layers: PositiveInt = 2
    mlp: PositiveInt = 128
    positions: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    dropout: Probability = 0.1
    pooling: Literal["mean", "cls", "first", "last"] = "mean"
    causal: bool = False
    qkv: Annotated[PositiveInt | None, BeforeValidator(_or_none)] = None
    qkv_bias: bool = True
    attention_dropout: Probability = 0.0
    head_hidden: Widths = ()
    match: Literal["products", "pair"] = "products"


class Budget(_Config):
    """Fixed steps, never a clock. One step sees `batch` examples in `accumulate` equal micro-batches, or in more where
    memory does not hold them; the record's cost says in how many.

    The learning rate rises linearly over `warmup` steps to `lr`, then follows `schedule`: cosine to 0 at the last step,
    rsqrt = lr * sqrt(warmup / step), or constant. Tested are the weights of the best validation, or of the last step.
    """

    steps: PositiveInt = 400
    batch: PositiveInt = 32
    accumulate: PositiveInt = 1
    lr: PositiveFloat = 1e-3
    schedule: Literal["cosine", "rsqrt", "constant"] = "cosine"
    warmup: NonNegativeInt = 40
    weight_decay: NonNegativeFloat = 0.01
    beta1: Probability = 0.9
    beta2: Probability = 0.98
    eps: PositiveFloat = 1e-9
    clip: NonNegativeFloat = 1.0
    eval_every: PositiveInt = 50
    eval_batch: PositiveInt = 64
    select: Literal["best", "last"] = "best"

    @model_validator(mode="after")
    def _whole_micro_batches(self) -> Budget:
        if self.batch % self.accumulate:
            raise ValueError(f"accumulate={self.accumulate} does not divide batch={self.batch}")
        return self

    def learning_rate(self, step: int) -> float:
        """Of the update made at `step`, counted from 0."""
        import math

        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        if self.schedule == "cosine":
            share = (step - self.warmup) / max(1, self.steps - self.warmup)
            return self.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
        if self.schedule == "rsqrt":
            return self.lr * math.sqrt(max(1, self.warmup) / max(1, step + 1))
        return self.lr


class Numerics(_Config):
    """fp32, or bf16 autocast."""

    dtype: Literal["fp32", "bf16"] = "fp32"


class Padding(_Config):
    """To the task's maximum length, to the longest example of a batch, or so in batches of like lengths (grouped); the
    same for all mechanisms.

    With `unmasked` mechanisms that ignore masks run too, and take padding for content: with rule=max only, where the
    padded length is the same for all examples and in every batch. With `mask_zeros` every token of id 0 is masked,
    wherever it stands: in pictures what is black.
    """

    rule: Literal["max", "batch", "grouped"] = "batch"
    unmasked: bool = False
    mask_zeros: bool = False

    @model_validator(mode="after")
    def _one_length(self) -> Padding:
        if self.unmasked and self.rule != "max":
            raise ValueError(
                f"unmasked=true needs rule=max: with rule={self.rule} what ignores masks would see how long the other "
                "examples of its batch are"
            )
        return self
