"""Every finding the doctor can make: its code, severity, title, cause, cure, and how people meet it.

One source for `doctor --list`, `doctor --explain CODE` and the pages in docs/findings/. A code, once
published, keeps its meaning. TB1xx declaration · TB2xx storage · TB3xx numbers · TB4xx adapters · TB5xx live
modules · TB6xx quantisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """error: a loader gets a wrong model. warning: something will bite. note: worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Code:
    """What is true of every finding with this code; the evidence is added where it is found."""

    code: str
    severity: Severity
    title: str
    cause: str
    cure: str
    met: str
    seen_in: tuple[str, ...] = ()

    def page(self) -> str:
        """The finding's page, in Markdown."""
        seen = f"\n\nReported in: {', '.join(self.seen_in)}." if self.seen_in else ""
        return (
            f"# {self.code}: {self.title}\n\nSeverity: {self.severity}\n\n"
            f"## How people meet it\n\n{self.met}{seen}\n\n## Cause\n\n{self.cause}\n\n## Cure\n\n{self.cure}\n"
        )


_ERROR, _WARNING, _NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

_ALL = (
    Code(
        "TB101", _ERROR, "declared tied, but two different matrices are stored",
        "Something changed one end and not the other while tie_word_embeddings stayed true: a LoRA merge into the "
        "head, a fine-tune that trained the head apart, an edited file.",
        "If the two are meant to differ (a merge, a trained head): set the flag to false, which is what "
        "`tiebeam doctor MODEL --fix --out DST` does. If they are not, make them one again: `tiebeam tie SRC DST --keep embed`.",
        "The model writes gibberish after a merge in one program and is fine in another. transformers 5 keeps both "
        "and warns; transformers 4, vLLM and mlx-lm throw the stored head away; a later resize_token_embeddings() or "
        "tie_weights() overwrites it without a word.",
        ("transformers#45127", "peft#2777", "unsloth#1971", "vllm#51063", "transformers#42612"),
    ),
    Code(
        "TB102", _ERROR, "declared untied, but no head is stored",
        "The flag was flipped to false in a text editor, or is absent where the architecture's default is untied, or "
        "the head was lost when a sharded training checkpoint was consolidated.",
        "If the model was trained tied, set the flag to true: `tiebeam doctor MODEL --fix --out DST`. To have a head of its own "
        "with the same numbers, then run `tiebeam untie`. If it was trained untied, the head is gone: consolidate again.",
        "Loading gives no error, only a MISSING line in a report; the head is random and different at every load, and "
        "so is the text.",
        ("transformers#44358", "transformers#11903", "vllm#53020", "DeepSpeed#1896", "DeepSpeed#3824"),
    ),
    Code(
        "TB103", _WARNING, "the levels of the config disagree about the tie",
        "A multimodal config has the flag at the top and in text_config. Which one counts differs between "
        "architectures, library versions and loaders.",
        "Write the same value at both levels: `tiebeam doctor MODEL --fix --out DST`.",
        "The language model inside a vision model loads tied in one version and with a random head in the next.",
        ("transformers#43429", "transformers#45857", "vllm#33359"),
    ),
    Code(
        "TB104", _WARNING, "the flag is absent, and loaders assume different defaults",
        "config.json has no tie_word_embeddings. Each library has a default per architecture, and they differ: for "
        "llama, transformers assumes untied and mlx-lm tied.",
        "Write the flag out: `tiebeam doctor MODEL --fix --out DST`.",
        "The same files work in transformers and lose their head in mlx-lm.",
    ),
    Code(
        "TB105", _NOTE, "this family ignores the flag in config.json",
        "The T5 family in transformers 5 turns tie_word_embeddings: false into another setting (whether decoder outputs "
        "are scaled) and always declares the tie; a different stored head survives only because the values differ.",
        "Nothing to do for loading. Before calling tie_weights() or resize_token_embeddings() on the loaded model, set "
        "model.config.tie_word_embeddings = False.",
        "A T5 v1.1 or Flan-T5 model is fine until its vocabulary is resized; then its head is the embedding.",
        ("transformers#48154",),
    ),
    Code(
        "TB201", _WARNING, "the head is stored although it is the embedding again",
        "The alias was lost on the way (a state dict saved by hand, a merge, a quantiser) and both copies were written.",
        "Drop the copy: `tiebeam tie SRC DST`, or `tiebeam doctor MODEL --fix --out DST`. No number changes.",
        "The file is bigger than it should be, or a loader that knows the tie stops at an unexpected lm_head.weight.",
        ("mlx-lm#1298", "sglang#2935", "accelerate#3870", "transformers#48972", "llm-compressor#2798"),
    ),
    Code(
        "TB202", _NOTE, "declared untied, and the two matrices are still equal",
        "The model was just untied, or its head was initialised from the embedding and never trained.",
        "If it is on its way to being trained untied, nothing. Otherwise `tiebeam tie SRC DST` saves one matrix.",
        "The parameter count is one matrix higher than the model's sisters'.",
    ),
    Code(
        "TB203", _WARNING, "the one matrix is stored under the head's name only",
        "safetensors.torch.save_model keeps one of two shared names, here the head's, and notes the alias in the file's "
        "metadata, which other loaders do not read.",
        "Rename it: `tiebeam doctor MODEL --fix --out DST`.",
        "transformers copes when the flag is true; ONNX exporters, llama.cpp's converter and others miss the embedding.",
        ("onnxruntime-genai#1089", "transformers#48154"),
    ),
    Code(
        "TB204", _ERROR, "the two ends have different numbers of rows",
        "The vocabulary was resized on one side only, usually by adding tokens to the embedding of a wrapped or "
        "half-loaded model.",
        "Decide which vocabulary is right. If the extra rows were never trained, cut them; if they were, the head needs "
        "rows for them too: load with transformers and call resize_token_embeddings() on the whole model, then save.",
        "RuntimeError: size mismatch on load, or new tokens that can be read but never come out.",
        ("LlamaFactory#6749", "peft#1750"),
    ),
    Code(
        "TB205", _ERROR, "neither end of the pair is stored",
        "The embedding was left out when the file was written (an adapter or trunk saved alone, a shard missing from an "
        "unindexed set).",
        "Find the file that holds the embedding; a loader would start both ends at random, with a warning.",
        "The model loads and writes noise.",
    ),
    Code(
        "TB206", _NOTE, "an alias is noted only in the file's metadata",
        "safetensors.torch.save_model wrote {dropped name: kept name} into __metadata__; only safetensors.torch.load_model "
        "reads it back.",
        "Harmless when the configuration declares the tie. To make the file plain: `tiebeam doctor MODEL --fix --out DST`.",
        "Another loader reports a missing key.",
        ("safetensors#493", "Megatron-Bridge#919"),
    ),
    Code(
        "TB207", _NOTE, "a training checkpoint that is not consolidated",
        "Several processes each saved their own part: torch's distributed checkpoint (FSDP), DeepSpeed's ZeRO, or one file "
        "a process. What is said of the pair is said of the parts put together.",
        "No loader opens it as it is. `tiebeam tie`, `tiebeam untie` and `tiebeam doctor --fix` do, and write the whole "
        "model. Otherwise consolidate it with its own tool, and look again at what that wrote: "
        "`python -m torch.distributed.checkpoint.format_utils dcp_to_torch DIR OUT.pt` for DCP, "
        "`python zero_to_fp32.py DIR OUT` (it lies in the checkpoint) for DeepSpeed, `accelerate merge-weights DIR OUT` for "
        "FSDP under accelerate.",
        "from_pretrained finds no weights in the folder; or a tied model comes out of the merge without its head, or with "
        "two.",
        ("DeepSpeed#1896", "DeepSpeed#3824"),
    ),
    Code(
        "TB301", _ERROR, "declared tied, and the two differ in a few rows only",
        "Rows for added tokens were trained or initialised on one side only.",
        "If the embedding's rows are the right ones: `tiebeam tie SRC DST --keep embed`; if the head's: --keep head. To keep "
        "both as they are, set the flag to false.",
        "The new tokens are understood but never come out, or come out everywhere.",
        ("LlamaFactory#6749", "peft#1750"),
    ),
    Code(
        "TB302", _WARNING, "declared untied, but only a few rows differ",
        "An untied copy of a tied table in which just some tokens were trained on one side.",
        "If that is what was meant, nothing. Otherwise decide which side's rows are right and tie it: "
        "`tiebeam tie SRC DST --keep embed`.",
        "Added tokens behave differently at the two ends.",
        ("LlamaFactory#6749",),
    ),
    Code(
        "TB303", _WARNING, "copies of the embedding in this checkpoint have drifted apart",
        "Pipeline stages or extra prediction layers each hold a copy of the table; without a shared all-reduce and a "
        "shared optimizer state they drift.",
        "Decide which copy is right and write it under all the names; in training, reduce the gradients of all the copies together.",
        "The first and the last stage of a pipeline disagree about the vocabulary; the loss jumps after a conversion.",
        ("pytorch#51931", "Megatron-LM#4642"),
    ),
    Code(
        "TB401", _WARNING, "the adapter changes one end of a tied base",
        "LoRA on the head or on the embedding of a tied model: while it trains there are two behaviours and one table; "
        "merging changes the shared table, and so the other end as well.",
        "Untie the base first (`tiebeam untie BASE DST`) and train the adapter on that, or use PEFT's ensure_weight_tying.",
        "The merged model is worse than the adapter was.",
        ("peft#2018", "peft#2777"),
    ),
    Code(
        "TB402", _WARNING, "the adapter carries a full copy of one end of a tied base",
        "modules_to_save holds a trained copy of the head or of the embedding; merging stores it beside the other end and "
        "leaves the flag true.",
        "After the merge, set the flag to false (`tiebeam doctor MERGED --fix --out DST`), or untie the base before training.",
        "Gibberish after the merge, in loaders that believe the flag.",
        ("transformers#45127", "unsloth#1971"),
    ),
    Code(
        "TB403", _WARNING, "converters drop the head's part of this adapter",
        "Conversion to GGUF has no tensor to attach the head's LoRA to when the base is tied, and skips it silently.",
        "Untie the base first (`tiebeam untie BASE DST`), merge, then convert.",
        "The adapter works in transformers and does nothing for the new tokens in llama.cpp.",
        ("llama.cpp#9065",),
    ),
    Code(
        "TB404", _ERROR, "the adapter was trained with another vocabulary than its base has",
        "Tokens were added before training; the adapter's copy of an end has more rows than the base.",
        "Resize the base to the adapter's vocabulary before loading it: model.resize_token_embeddings(rows).",
        "size mismatch for embed_tokens when the adapter is loaded.",
        ("LlamaFactory#6749",),
    ),
    Code(
        "TB405", _WARNING, "only one end of an untied base is trained for added tokens",
        "The adapter trains the embedding of new tokens but not the head (or the reverse).",
        "List both in modules_to_save, or use trainable_token_indices for both.",
        "New tokens never come out.",
        ("peft#1750",),
    ),
    Code(
        "TB501", _ERROR, "the tie is broken: two parameters where the model says one",
        "A stage replaced one end: to_empty() after the meta device, init_empty_weights, load_state_dict(assign=True), "
        "dispatch over devices, a wrapper that copies.",
        "Tie again after that stage: model.tie_weights(), or `tiebeam.tie_(model)`.",
        "The loss jumps on resume; two copies drift apart while the checkpoint keeps only one.",
        ("Automodel#2571", "verl#7834", "accelerate#3668", "pytorch#188346", "accelerate#993"),
    ),
    Code(
        "TB502", _ERROR, "one storage under two Parameter objects",
        "Someone tied by assigning .data, or re-wrapped the weight in a new Parameter: the numbers are shared, the "
        "gradients and the optimizer's state are not.",
        "Make it one Parameter: head.weight = embed.weight, or `tiebeam.tie_(model)`.",
        "The table is stepped twice per step, by two different amounts. No library reports it.",
        ("pytorch#40967", "APOLLO#4"),
    ),
    Code(
        "TB503", _ERROR, "one weight is in two optimizer groups, or stepped twice",
        "Both ends were listed when the groups were built by module instead of by parameter.",
        "Build groups from model.parameters(), which lists a shared weight once; or keep a set of ids.",
        "The table learns at twice its rate, or with two weight decays.",
        ("pytorch#40967", "APOLLO#4"),
    ),
    Code(
        "TB504", _WARNING, "a vocabulary table is handed to Muon",
        "Muon orthogonalises the update of a hidden matrix. A lookup table's gradient is sparse in rows, and "
        "orthogonalising it moves tokens that were not seen.",
        "Give the table to Adam with a rate of its own, and the hidden matrices to Muon.",
        "Training is slower than with plain Adam, and rare tokens drift.",
    ),
    Code(
        "TB505", _WARNING, "an embedding initialised for lookup reaches the head",
        "nn.Embedding starts at N(0, 1). Through a tied head the first logits then have a standard deviation of sqrt(d).",
        "Initialise the shared table with a standard deviation such that d * sigma is at most about 2.5.",
        "A loss of several hundred at step 0.",
        ("xlstm#83",),
    ),
    Code(
        "TB506", _WARNING, "freezing one end has frozen the other",
        "A tied pair is one parameter: requires_grad=False on the embedding is requires_grad=False on the head.",
        "If only one end should be frozen, untie first: `tiebeam.untie_(model)`.",
        "The head does not learn.",
        ("transformers#31467",),
    ),
    Code(
        "TB507", _WARNING, "the config says tied, the values differ: the next tie overwrites the head",
        "The checkpoint was torn and transformers 5 kept both, leaving config.tie_word_embeddings true.",
        "model.config.tie_word_embeddings = False, before resize_token_embeddings(), tie_weights() or save_pretrained().",
        "A resize replaces a trained head by the embedding, without a word.",
        ("transformers#42612",),
    ),
    Code(
        "TB508", _NOTE, "two names share memory, and saving will say so",
        "safetensors refuses to write one storage twice, and a plain module has no list of its ties.",
        "Save one name: drop the alias from the state dict, or use safetensors.torch.save_model.",
        "RuntimeError: Some tensors share memory.",
        ("safetensors#493", "Megatron-Bridge#919"),
    ),
    Code(
        "TB509", _ERROR, "_tied_weights_keys is a list, and this transformers needs a mapping",
        "The model's code was written for transformers 4.",
        "Set _tied_weights_keys = {\"lm_head.weight\": \"model.embed_tokens.weight\"} on the class, or load with transformers 4.",
        "AttributeError: 'list' object has no attribute 'keys'.",
        ("transformers#44861",),
    ),
    Code(
        "TB510", _ERROR, "the optimizer holds a table that is no longer in the model",
        "The optimizer was built before a stage that replaced the parameter (tie, untie, resize, to_empty).",
        "Build the optimizer after that stage, or move its state: `tiebeam.tie_(model, optimizer)`.",
        "The table never changes although the loss goes down.",
    ),
    Code(
        "TB511", _WARNING, "the two ends are sharded in different groups",
        "FSDP2 manages a parameter in one group; a tied pair split over two groups loses its tie or fails in torch 2.13.",
        "Shard both ends as one group: fully_shard([model.embed, model.head]).",
        "RuntimeError about a parameter that is shared with one already managed.",
        ("accelerate#4171", "torchtitan#2495"),
    ),
    Code(
        "TB601", _WARNING, "one end of a tied pair is quantised and the other is not",
        "A quantiser packed the head of a tied model as if it were its own layer.",
        "Exclude lm_head from quantisation, or untie the model first: `tiebeam untie SRC DST`.",
        "The loader fails on unexpected packed names, or the quantised head garbles the output.",
        ("vllm#45544", "sglang#35228", "transformers#37905"),
    ),
    Code(
        "TB602", _WARNING, "a low-bit embedding doubles as the head",
        "Without output.weight, llama.cpp uses token_embd.weight for the logits; below Q6_K its rounding shows there.",
        "Quantise again with a finer table: llama-quantize --token-embedding-type q8_0 (or q6_k).",
        "Repetition and odd tokens in a quantised tied model.",
        ("llama.cpp#5650",),
    ),
)  # fmt: skip

CODES = {code.code: code for code in _ALL}
assert len(CODES) == len(_ALL), "a code stands twice"
