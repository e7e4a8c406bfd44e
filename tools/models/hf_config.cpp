#include "models/hf_config.hpp"

#include <algorithm>

#include "models/config_builder.hpp"

namespace muonrt::tool {

namespace {

enum class Bias { kNone, kAlways, kByField };
enum class Experts { kDense, kMixtral, kQwen, kDeepSeek, kGptOss };
enum class Attention { kHeads, kLatent };

/// The differences between a model family and Llama.
struct Family {
  const char* type;  // model_type
  Attention attention = Attention::kHeads;
  Bias qkv_bias = Bias::kNone, o_bias = Bias::kNone;
  const char* bias_field = "attention_bias";
  int64_t bias_default = 0;
  bool qk_norm = false;
  std::vector<const char*> more_norms = {};  // additional norms of d elements in each layer
  bool fused_gate_up = false;
  Experts experts = Experts::kDense;
  bool router_bias = false;  // whether each expert has a bias, which balances the load
  int64_t tied = 0;          // default value of tie_word_embeddings
  std::vector<FieldDefault> defaults = {};
};

const std::vector<Family>& families() {
  using enum Bias;
  using enum Experts;
  constexpr auto kLatent = Attention::kLatent;
  const std::vector<const char*> gemma_norms = {"pre_feedforward_layernorm",
                                                "post_feedforward_layernorm"};
  const std::vector<const char*> glm_norms = {"post_self_attn_layernorm", "post_mlp_layernorm"};
  const std::vector<FieldDefault> latent = {
      {"qk_nope_head_dim", 128}, {"qk_rope_head_dim", 64}, {"v_head_dim", 128}};
  static const std::vector<Family> all = {
      {.type = "llama", .qkv_bias = kByField, .o_bias = kByField},
      {.type = "mistral"},
      {.type = "qwen2", .qkv_bias = kAlways},
      {.type = "qwen3",
       .qkv_bias = kByField,
       .o_bias = kByField,
       .qk_norm = true,
       .defaults = {{"head_dim", 128}}},
      {.type = "qwen2_moe",
       .qkv_bias = kByField,
       .bias_field = "qkv_bias",
       .bias_default = 1,
       .experts = kQwen},
      {.type = "qwen3_moe",
       .qkv_bias = kByField,
       .o_bias = kByField,
       .qk_norm = true,
       .experts = kQwen},
      {.type = "mixtral", .experts = kMixtral},
      {.type = "deepseek_v2", .attention = kLatent, .experts = kDeepSeek, .defaults = latent},
      {.type = "deepseek_v3",
       .attention = kLatent,
       .experts = kDeepSeek,
       .router_bias = true,
       .defaults = latent},
      {.type = "kimi_k2",
       .attention = kLatent,
       .experts = kDeepSeek,
       .router_bias = true,
       .defaults = latent},
      {.type = "glm",
       .qkv_bias = kByField,
       .bias_default = 1,
       .fused_gate_up = true,
       .defaults = {{"head_dim", 128}}},
      {.type = "glm4",
       .qkv_bias = kByField,
       .bias_default = 1,
       .more_norms = glm_norms,
       .fused_gate_up = true,
       .defaults = {{"head_dim", 128}}},
      {.type = "glm4_moe",
       .qkv_bias = kByField,
       .experts = kDeepSeek,
       .router_bias = true,
       .defaults = {{"head_dim", 128}}},
      {.type = "gemma",
       .qkv_bias = kByField,
       .o_bias = kByField,
       .tied = 1,
       .defaults = {{"head_dim", 256}}},
      {.type = "gemma2",
       .qkv_bias = kByField,
       .o_bias = kByField,
       .more_norms = gemma_norms,
       .tied = 1,
       .defaults = {{"head_dim", 256}}},
      {.type = "gemma3_text",
       .qkv_bias = kByField,
       .o_bias = kByField,
       .qk_norm = true,
       .more_norms = gemma_norms,
       .tied = 1,
       .defaults = {{"head_dim", 256},
                    {"num_attention_heads", 8},
                    {"num_key_value_heads", 4},
                    {"vocab_size", 262208}}},
      {.type = "gpt_oss",
       .qkv_bias = kByField,
       .o_bias = kByField,
       .bias_default = 1,
       .experts = kGptOss,
       .defaults = {{"head_dim", 64}}},
  };
  return all;
}

void add_heads(ConfigBuilder& b, const Family& f, const std::string& at) {
  const int64_t d = b.width("hidden_size"), heads = b.count("num_attention_heads");
  const int64_t head = b.width("head_dim", std::max<int64_t>(1, d / heads));
  const int64_t kv = b.count("num_key_value_heads", heads);
  if (heads % kv != 0)
    b.refuse("num_key_value_heads is " + std::to_string(kv) +
             ", but must divide num_attention_heads, which is " + std::to_string(heads));
  const bool field = b.flag(f.bias_field, f.bias_default != 0);
  const auto bias = [&](Bias kind) {
    return kind == Bias::kAlways || (kind == Bias::kByField && field);
  };
  b.linear(at + "q_proj", heads * head, d, bias(f.qkv_bias));
  b.linear(at + "k_proj", kv * head, d, bias(f.qkv_bias));
  b.linear(at + "v_proj", kv * head, d, bias(f.qkv_bias));
  b.linear(at + "o_proj", d, heads * head, bias(f.o_bias));
  if (f.qk_norm || b.flag("use_qk_norm", false))
    for (const char* norm : {"q_norm", "k_norm"}) b.add(at + norm + ".weight", {head});
  if (f.experts == Experts::kGptOss) b.add(at + "sinks", {heads});
}

/// Adds the multi-head latent attention of DeepSeek-V2 and later models.
void add_latent(ConfigBuilder& b, const std::string& at) {
  const int64_t d = b.width("hidden_size"), heads = b.count("num_attention_heads");
  const int64_t nope = b.width("qk_nope_head_dim"), rope = b.width("qk_rope_head_dim");
  const int64_t value = b.width("v_head_dim"), rank = b.width("kv_lora_rank");
  const bool bias = b.flag("attention_bias", false);
  if (b.has("q_lora_rank")) {
    const int64_t q = b.width("q_lora_rank");
    b.linear(at + "q_a_proj", q, d, bias);
    b.add(at + "q_a_layernorm.weight", {q});
    b.linear(at + "q_b_proj", heads * (nope + rope), q);
  } else {
    b.linear(at + "q_proj", heads * (nope + rope), d);
  }
  b.linear(at + "kv_a_proj_with_mqa", rank + rope, d, bias);
  b.add(at + "kv_a_layernorm.weight", {rank});
  b.linear(at + "kv_b_proj", heads * (nope + value), rank);
  b.linear(at + "o_proj", d, heads * value, bias);
}

/// Returns whether the layer has experts instead of one dense MLP.
bool has_experts(const ConfigBuilder& b, const Family& f, int64_t layer) {
  if (f.experts == Experts::kDense) return false;
  if (f.experts == Experts::kQwen) {
    if (b.has("mlp_only_layers")) {
      const auto dense = b.at("mlp_only_layers").integers(0, kMaxCount);
      if (std::find(dense.begin(), dense.end(), layer) != dense.end()) return false;
    }
    return (layer + 1) % b.count("decoder_sparse_step", 1) == 0;
  }
  return layer >= b.count_or_zero("first_k_dense_replace");
}

void add_experts(ConfigBuilder& b, const Family& f, const std::string& at) {
  const int64_t d = b.width("hidden_size");
  switch (f.experts) {
    case Experts::kDense:
      return;
    case Experts::kGptOss: {
      const int64_t experts = b.count("num_local_experts"), ffn = b.width("intermediate_size");
      b.linear(at + "router", experts, d, true);
      b.transposed(at + "experts.gate_up_proj", {experts, d, 2 * ffn});
      b.add(at + "experts.gate_up_proj_bias", {experts, 2 * ffn});
      b.transposed(at + "experts.down_proj", {experts, ffn, d});
      return b.add(at + "experts.down_proj_bias", {experts, d});
    }
    case Experts::kMixtral: {
      const int64_t experts = b.count("num_local_experts");
      b.linear(at + "gate", experts, d);
      return add_stacks(b, at + "experts.", experts, d, b.width("intermediate_size"));
    }
    case Experts::kQwen: {
      const int64_t experts = b.count("num_experts");
      b.linear(at + "gate", experts, d);
      add_stacks(b, at + "experts.", experts, d, b.width("moe_intermediate_size"));
      if (!b.has("shared_expert_intermediate_size")) return;
      add_mlp(b, at + "shared_expert.", d, b.width("shared_expert_intermediate_size"));
      return b.linear(at + "shared_expert_gate", 1, d);
    }
    case Experts::kDeepSeek: {
      const int64_t experts = b.count("n_routed_experts"), ffn = b.width("moe_intermediate_size");
      b.linear(at + "gate", experts, d);
      if (f.router_bias) b.add(at + "gate.e_score_correction_bias", {experts});
      add_stacks(b, at + "experts.", experts, d, ffn);
      const int64_t shared = b.count_or_zero("n_shared_experts");
      if (shared > 0) add_mlp(b, at + "shared_experts.", d, shared * ffn);
    }
  }
}

/// Adds the tensors of a Llama model or a similar one.
void add_decoder(ConfigBuilder& b, const Family& f) {
  b.defaults = f.defaults;
  const int64_t d = b.width("hidden_size"), vocab = b.width("vocab_size");
  const int64_t layers = b.count("num_hidden_layers");
  b.add("model.embed_tokens.weight", {vocab, d});
  for (int64_t l = 0; l < layers; ++l) {
    const std::string at = "model.layers." + std::to_string(l) + ".";
    if (f.attention == Attention::kLatent) {
      add_latent(b, at + "self_attn.");
    } else {
      add_heads(b, f, at + "self_attn.");
    }
    if (has_experts(b, f, l)) {
      add_experts(b, f, at + "mlp.");
    } else {
      add_mlp(b, at + "mlp.", d, b.width("intermediate_size"), f.fused_gate_up);
    }
    b.add(at + "input_layernorm.weight", {d});
    b.add(at + "post_attention_layernorm.weight", {d});
    for (const char* norm : f.more_norms) b.add(at + norm + ".weight", {d});
  }
  b.add("model.norm.weight", {d});
  if (!b.flag("tie_word_embeddings", f.tied != 0)) b.add("lm_head.weight", {vocab, d});
}

/// Adds the tensors of GPT-2, which stores its Conv1D weights as inputs x outputs.
void add_gpt2(ConfigBuilder& b) {
  const int64_t d = b.width("n_embd"), ffn = b.width("n_inner", 4 * d);
  const int64_t vocab = b.width("vocab_size"), layers = b.count("n_layer");
  b.add("transformer.wte.weight", {vocab, d});
  b.add("transformer.wpe.weight", {b.width("n_positions", 1024), d});
  const auto norm = [&](const std::string& name) {
    b.add(name + ".weight", {d});
    b.add(name + ".bias", {d});
  };
  const auto conv1d = [&](const std::string& name, int64_t in, int64_t out) {
    b.transposed(name + ".weight", {in, out});
    b.add(name + ".bias", {out});
  };
  for (int64_t l = 0; l < layers; ++l) {
    const std::string at = "transformer.h." + std::to_string(l) + ".";
    norm(at + "ln_1");
    conv1d(at + "attn.c_attn", d, 3 * d);
    conv1d(at + "attn.c_proj", d, d);
    norm(at + "ln_2");
    conv1d(at + "mlp.c_fc", d, ffn);
    conv1d(at + "mlp.c_proj", ffn, d);
  }
  norm("transformer.ln_f");
  if (!b.flag("tie_word_embeddings", true)) b.add("lm_head.weight", {vocab, d});
}

std::string known_types() {
  std::string out;
  for (const Family& f : families()) out += std::string(f.type) + ", ";
  return out + "deepseek_v4, gpt2";
}

}  // namespace

ModelShapes read_hf_config(const nlohmann::json& config, const std::string& file) {
  Value{config, file}.require_object();
  ConfigBuilder whole(config, file);
  const bool nested = whole.has("text_config") && !whole.has("hidden_size");
  if (nested) {
    whole.at("text_config").require_object();
    ModelShapes out = read_hf_config(config.at("text_config"), file + ": text_config");
    out.notes.push_back("only the language model of text_config is included");
    if (config.contains("torch_dtype") && config.at("torch_dtype").is_string())
      out.dtype = config.at("torch_dtype").get<std::string>();
    return out;
  }
  if (!whole.has("model_type")) whole.refuse("model_type is missing; use one of " + known_types());
  const std::string type = whole.at("model_type").text();
  if (whole.has("num_nextn_predict_layers") && whole.count_or_zero("num_nextn_predict_layers") > 0)
    whole.out.notes.push_back("the layers of multi-token prediction are not included");
  const auto& known = families();
  const auto family =
      std::find_if(known.begin(), known.end(), [&](const Family& f) { return type == f.type; });
  if (type == "gpt2") {
    add_gpt2(whole);
  } else if (type == "deepseek_v4") {
    add_deepseek_v4(whole);
  } else if (family != known.end()) {
    add_decoder(whole, *family);
  } else {
    whole.refuse("model_type is '" + type + "', but must be one of " + known_types() +
                 "; or pass a *.safetensors file or a JSON of shapes");
  }
  const auto& tensors = whole.out.tensors;
  if (std::any_of(tensors.begin(), tensors.end(), [](const ModelShape& t) { return t.stack; }))
    whole.out.notes.push_back("the experts of a layer are counted as stacks");
  for (const char* field : {"torch_dtype", "dtype"})
    if (config.contains(field) && config.at(field).is_string())
      whole.out.dtype = config.at(field).get<std::string>();
  return std::move(whole.out);
}

}  // namespace muonrt::tool
