#!/usr/bin/env python3
"""Writes model_roles.jsonl: the parameters of real models, and the role that each of them should have.

  python make_model_roles.py > model_roles.jsonl    needs torch, transformers, timm, diffusers, peft

The models have few layers and are on the meta device. A parameter is left out if it differs from an earlier one
only by numbers in its name, or if it is a vector that belongs to no norm. The roles come from the types of modules
and from the lists below, which were reviewed by hand. They never come from muonrt. It is an error if neither the
types nor the lists give a parameter a role.

Each line describes a model: "outputs" (sizes that its configuration states), "head" (its output embedding) and
"params" (name, shape, class of the module, role). The class is followed by its torch.nn base class and, for a
convolution, by the arguments of its constructor. A role is "muon" or "adamw" and how the tensor forms matrices. It
is null if the parameter is frozen, and "= name" if the parameter is tied to the one with this name. If the name
alone gives another role, that role is the fifth entry.
"""
import json
import re
import sys

import torch
from torch import nn

# Output heads by model: modules that map to classes, tokens, answers or scores.
HEADS = r"^(.*\.)?(lm_head|score|classifier|qa_outputs|head|head_dist|heads\.head|fc)(\.\d)?$"
OF_MODEL = {
    # Model: {pattern of the parameter's name: role}. The last layer of a head gets AdamW, and its
    # hidden layers get Muon.
    "RobertaForSequenceClassification": {r"classifier\.dense": "muon", r"classifier\.out_proj": "adamw"},
    "BertForPreTraining": {r"cls\.seq_relationship": "adamw"},
    "DistilBertForMaskedLM": {r"vocab_transform": "muon"},
    "ElectraForPreTraining": {r"discriminator_predictions\.dense\.": "muon",
                              r"discriminator_predictions\.dense_prediction": "adamw"},
    "DetrForObjectDetection": {r"class_labels_classifier": "adamw", r"bbox_predictor": "adamw",
                               r"embedder\.embedder": "adamw"},
    "YolosForObjectDetection": {r"class_labels_classifier": "adamw", r"bbox_predictor": "adamw",
                                r"position_embeddings|detection_tokens": "adamw"},
    "GPT2DoubleHeadsModel": {r"multiple_choice_head": "adamw"},
    "WavLMForXVector": {r"objective\.": "adamw", r"pos_conv_embed": "adamw", r"conv_layers\.0\.conv": "muon/flatten"},
    "ASTForAudioClassification": {r"classifier\.dense": "adamw", r"patch_embeddings": "adamw",
                                  r"position_embeddings": "adamw"},
    "DecisionTransformerModel": {r"^predict_": "adamw", r"^embed_": "adamw"},
    "SegformerForSemanticSegmentation": {r"patch_embeddings": "adamw", r"linear_fuse": "muon/flatten"},
    "MambaForCausalLM": {r"A_log": "adamw"},
    "JambaForCausalLM": {r"A_log": "adamw"},
    "GptOssForCausalLM": {r"experts\..*_bias": "adamw", r"router\.weight": "muon"},
    "ViTForImageClassification": {r"position_embeddings": "adamw"},
    "Blip2Model": {r"position_embedding|query_tokens": "adamw"},
    "RwkvForCausalLM": {r"time_": "adamw"},
    "Wav2Vec2ForCTC": {r"pos_conv_embed": "adamw", r"conv_layers\.0\.conv": "muon/flatten"},
    "ResNetForImageClassification": {r"embedder\.embedder": "adamw", r"classifier\.": "adamw"},
    "VGG": {r"head\.fc": "adamw"},
    "DiTTransformer2DModel": {r"proj_out": "adamw"},
    "FluxTransformer2DModel": {r"^(x|context)_embedder": "adamw", r"^proj_out": "adamw"},
    "SD3Transformer2DModel": {r"^(context_embedder|pos_embed\.proj)": "adamw", r"^proj_out": "adamw"},
    "UNet2DConditionModel": {r"^conv_out": "adamw"},
}


def is_matrix(p):
    return sum(n > 1 for n in p.shape) > 1


def role_of(kind, model, name, path, module, p):
    for pattern, role in OF_MODEL.get(kind, {}).items():
        if re.search(pattern, name) and is_matrix(p):
            return role
    if not is_matrix(p):
        return "adamw"
    of = type(module).__name__
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or "Norm" in of:
        return "adamw"
    path = re.sub(r"\.(base_layer|modules_to_save|lora_|original_module).*", "", path)
    if re.match(HEADS, path) or module is output_of(model):
        return "adamw"
    adapted = model.get_submodule(path)
    if "lora_" in name and isinstance(getattr(adapted, "base_layer", None), nn.Embedding):
        return "adamw"
    if isinstance(module, nn.modules.conv._ConvNd):
        if module.groups == module.in_channels > 1:
            return "adamw"
        if module.kernel_size == module.stride and max(module.stride) > 1 and module.in_channels <= 4:
            return "adamw"
        return "muon/flatten" + (f"/{module.groups} parts" if module.groups > 1 else "")
    if of == "Conv1D":
        return "muon/transposed"
    if isinstance(module, nn.Linear) or "in_proj_weight" in name:
        return "muon"
    if p.ndim == 3 and ("Expert" in of or "Moe" in of):
        return "muon/stack" + ("/transposed" if getattr(module, "is_transposed", False) else "")
    if re.search(r"(pos_embed|position_embedding|bias_table)$", name):
        return "adamw"
    if isinstance(p, nn.Parameter) and p.ndim == 2 and "Router" in of:
        return "muon"
    raise SystemExit(f"{kind}: {name} {tuple(p.shape)} of {of}: add its role by hand")


def output_of(model):
    try:
        return model.get_output_embeddings()
    except Exception:
        return None


def class_of(module):
    base = next(c.__name__ for c in type(module).__mro__
                if c.__module__.startswith("torch.nn") and c.__name__[0] != "_")
    out = type(module).__name__ + ("" if type(module).__name__ == base else f":{base}")
    if isinstance(module, nn.modules.conv._ConvNd):
        sizes = [",".join(map(str, n)) for n in (module.kernel_size, module.stride)]
        out += f" groups={module.groups} kernel={sizes[0]} stride={sizes[1]}"
    return out + (" is_transposed=1" if getattr(module, "is_transposed", False) is True else "")


def line_of(label, model, by_name):
    kind = type(getattr(getattr(model, "base_model", None), "model", model)).__name__ \
        if "peft" in label else type(model).__name__
    names, seen, params = {}, set(), []
    for name, p in model.named_parameters(remove_duplicate=False):
        path = name.rpartition(".")[0]
        module = model.get_submodule(path)
        key = re.sub(r"\d+", "#", path) + name[len(path):], tuple(p.shape), class_of(module)
        if id(p) in names:
            params.append([name, list(p.shape), class_of(module), f"= {names[id(p)]}"])
            continue
        names[id(p)] = name
        if key in seen or p.ndim < 2 and "Norm" not in key[2]:
            continue
        seen.add(key)
        role = None if not p.requires_grad else role_of(kind, model, name, path, module, p)
        params.append([name, list(p.shape), class_of(module), role])
        params[-1] += [r for q, r in by_name.items() if role and is_matrix(p) and re.search(q, name)]
    kept = {row[0] for row in params}
    params = [row for row in params if not str(row[3]).startswith("= ") or row[3][2:] in kept]
    config = getattr(model, "config", None)
    outputs = {key: value for key in ("vocab_size", "num_labels", "num_classes")
               for c in (model, config, getattr(config, "text_config", None))
               if isinstance(value := getattr(c, key, None), int)}
    head = output_of(model)
    head = next((n for n, m in model.named_modules() if m is head), None) if head is not None else None
    return {"model": label, "outputs": outputs, "head": head, "params": params}


def models():
    """Yields the label, a function that creates the model, and the roles that differ if only the
    name is used."""
    import transformers as hf

    few = {"num_hidden_layers": 2, "n_layer": 2, "num_layers": 2, "encoder_layers": 2,
           "decoder_layers": 2, "n_layers": 2, "d_model": None}

    def of(cls, by_name=None, config=None, **settings):
        def make():
            kind = getattr(hf, cls).config_class
            known = kind().to_dict()
            small = {k: v for k, v in few.items() if v and k in known}
            return getattr(hf, cls)._from_config(kind(**(small | settings)))
        return config or cls, make, by_name or {}

    labels = {"num_labels": 5}
    yield of("LlamaForCausalLM")
    yield of("LlamaForSequenceClassification", **labels)
    yield of("LlamaForTokenClassification", **labels)
    yield of("MistralForCausalLM")
    yield of("Qwen3ForCausalLM")
    yield of("Qwen3MoeForCausalLM")
    yield of("Qwen2MoeForCausalLM")
    yield of("Qwen3NextForCausalLM", layer_types=["linear_attention", "full_attention"])
    yield of("DeepseekV3ForCausalLM", num_hidden_layers=2, first_k_dense_replace=1)
    yield of("DeepseekV3ForCausalLM", config="Kimi K2 (DeepseekV3ForCausalLM)", vocab_size=163840,
             n_routed_experts=384, num_attention_heads=64, first_k_dense_replace=1)
    yield of("MixtralForCausalLM")
    yield of("OlmoeForCausalLM")
    yield of("GraniteMoeForCausalLM")
    yield of("GptOssForCausalLM")
    yield of("Gemma2ForCausalLM")
    yield of("Gemma3ForCausalLM")
    yield of("GPT2LMHeadModel")
    yield of("GPT2ForSequenceClassification", **labels)
    yield of("GPTNeoXForCausalLM")
    yield of("BloomForCausalLM")
    yield of("FalconForCausalLM")
    yield of("OPTForCausalLM", word_embed_proj_dim=512)
    yield of("Phi3ForCausalLM")
    yield of("RwkvForCausalLM")
    yield of("MambaForCausalLM")
    yield of("Mamba2ForCausalLM")
    yield of("JambaForCausalLM", num_hidden_layers=8)
    yield of("T5ForConditionalGeneration")
    yield of("BartForConditionalGeneration")
    yield of("BertForMaskedLM")
    yield of("BertForPreTraining")
    yield of("BertForQuestionAnswering")
    yield of("RobertaForSequenceClassification", **labels)
    yield of("RobertaForMaskedLM")
    yield of("DistilBertForSequenceClassification", **labels)
    yield of("DistilBertForMaskedLM")
    yield of("AlbertForMaskedLM")
    yield of("ElectraForPreTraining")
    yield of("DebertaV2ForSequenceClassification", **labels)
    yield of("ModernBertForMaskedLM")
    yield of("ViTForImageClassification", **labels)
    yield of("SwinForImageClassification", **labels)
    yield of("BeitForImageClassification", config="DiT for documents (BeitForImageClassification)",
             use_relative_position_bias=True, **labels)
    yield of("SegformerForSemanticSegmentation", **labels)
    yield of("CLIPModel")
    yield of("SiglipModel")
    yield of("WhisperForConditionalGeneration")
    yield of("Wav2Vec2ForCTC")
    yield of("ResNetForImageClassification", **labels)
    yield of("ConvNextForImageClassification", **labels)
    yield of("ConvNextV2ForImageClassification", **labels)
    yield of("LlavaForConditionalGeneration")
    yield of("Blip2Model")
    yield of("GPT2DoubleHeadsModel", num_labels=3)
    yield of("FlaubertWithLMHeadModel")
    yield of("DetrForObjectDetection", use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
             backbone_config=hf.ResNetConfig(depths=[1, 1, 1, 1], out_features=["stage4"]), **labels)
    yield of("YolosForObjectDetection", **labels)
    yield of("WavLMForXVector", **labels)
    # To judge by its name, the layer may be hidden, as in RobertaForSequenceClassification.
    yield of("ASTForAudioClassification", {r"classifier\.dense": "muon"}, **labels)
    yield of("DecisionTransformerModel")

    import timm
    for name in ("resnet50", "resnext50_32x4d", "convnext_tiny", "vit_base_patch16_224",
                 "deit_tiny_distilled_patch16_224", "efficientnet_b0", "mixer_b16_224",
                 "swin_tiny_patch4_window7_224", "vgg11"):
        # To judge by its name, a stem is a convolution like any other.
        yield f"timm {name}", lambda name=name: timm.create_model(name), {r"^stem\.": "muon/flatten"}

    import diffusers
    for name, settings in (
            ("DiTTransformer2DModel", {"num_layers": 2}),
            ("FluxTransformer2DModel", {"num_layers": 1, "num_single_layers": 1}),
            ("SD3Transformer2DModel", {"num_layers": 2}), ("UNet2DConditionModel", {})):
        yield name, lambda n=name, s=settings: getattr(diffusers, n)(**s), {}

    import peft
    for label, cls, make in (
            ("peft LoRA", hf.LlamaForCausalLM, lambda: peft.LoraConfig(target_modules="all-linear")),
            ("peft LoRA, embedding and head", hf.LlamaForCausalLM,
             lambda: peft.LoraConfig(target_modules=["embed_tokens", "lm_head", "q_proj"])),
            ("peft DoRA, classifier saved", hf.LlamaForSequenceClassification,
             lambda: peft.LoraConfig(task_type="SEQ_CLS", use_dora=True, target_modules=["q_proj"])),
            ("peft prompt tuning", hf.LlamaForCausalLM,
             lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=8)),
            ("peft IA3", hf.LlamaForCausalLM, lambda: peft.IA3Config(task_type="CAUSAL_LM"))):
        yield label, lambda cls=cls, make=make: peft.get_peft_model(
            cls(cls.config_class(num_hidden_layers=1)), make()), {}


def main():
    for label, make, by_name in models():
        print(label, file=sys.stderr)
        with torch.device("meta"):
            model = make()
        print(json.dumps(line_of(label, model, by_name), separators=(",", ":")))


if __name__ == "__main__":
    main()
