#include <string>

#include "models/config_builder.hpp"

namespace muonrt::tool {

namespace {

/// Collects the tensors of DeepSeek-V4. The model has one key-value head, compressed attention and
/// hyper-connections, and experts in every layer.
class DeepSeekV4 {
 public:
  explicit DeepSeekV4(ConfigBuilder& b) : b_(b) {}

  void add() {
    const int64_t vocab = b_.width("vocab_size", 129280);
    b_.add("model.embed_tokens.weight", {vocab, d_});
    for (int64_t l = 0; l < layers_; ++l) add_layer(l);
    b_.add("model.norm.weight", {d_});
    b_.add("model.hc_head.hc_fn", {hyper_, hyper_ * d_});
    b_.add("model.hc_head.hc_base", {hyper_});
    b_.add("model.hc_head.hc_scale", {1});
    if (!b_.flag("tie_word_embeddings", false)) b_.add("lm_head.weight", {vocab, d_});
  }

 private:
  enum class Kind { kSliding, kSparse, kHeavy };

  Kind kind_of(int64_t layer) const {
    const auto l = static_cast<size_t>(layer);
    if (b_.has("layer_types")) {
      const Value types = b_.at("layer_types");
      types.require_list(static_cast<size_t>(layers_));
      const std::string type = types.at(l).choice(std::vector<const char*>{
          "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"});
      return type == "sliding_attention"              ? Kind::kSliding
             : type == "heavily_compressed_attention" ? Kind::kHeavy
                                                      : Kind::kSparse;
    }
    if (b_.has("compress_ratios")) {
      const Value ratios = b_.at("compress_ratios");
      ratios.require_list(static_cast<size_t>(layers_));
      const int64_t ratio = ratios.at(l).integer(0, kMaxCount);
      return ratio == 0 ? Kind::kSliding : ratio > kSparseRate ? Kind::kHeavy : Kind::kSparse;
    }
    return layer >= 2 && layer % 2 == 1 ? Kind::kSparse : Kind::kHeavy;
  }

  void add_attention(const std::string& at, Kind kind) {
    const int64_t heads = b_.count("num_attention_heads"), head = b_.width("head_dim", 512);
    const int64_t q = b_.width("q_lora_rank"), groups = b_.count("o_groups");
    const int64_t rank = b_.width("o_lora_rank");
    if (heads * head % groups != 0)
      b_.refuse("o_groups is " + std::to_string(groups) + ", but must divide " +
                std::to_string(heads * head) + ", which is num_attention_heads x head_dim");
    b_.add(at + "sinks", {heads});
    b_.linear(at + "q_a_proj", q, d_);
    b_.add(at + "q_a_norm.weight", {q});
    b_.linear(at + "q_b_proj", heads * head, q);
    b_.linear(at + "kv_proj", head, d_);
    b_.add(at + "kv_norm.weight", {head});
    b_.linear(at + "o_a_proj", groups * rank, heads * head / groups);
    b_.linear(at + "o_b_proj", d_, groups * rank);
    const std::string inner = at + "compressor.";
    if (kind == Kind::kHeavy) add_compressor(inner, 128, head, 1);
    if (kind != Kind::kSparse) return;
    add_compressor(inner, kSparseRate, head, 2);
    const int64_t index_heads = b_.count("index_n_heads"), index_head = b_.width("index_head_dim");
    add_compressor(inner + "indexer.", kSparseRate, index_head, 2);
    b_.linear(inner + "indexer.q_b_proj", index_heads * index_head, q);
    b_.linear(inner + "indexer.scorer.weights_proj", index_heads, d_);
  }

  void add_compressor(const std::string& at, int64_t rate, int64_t head, int64_t copies) {
    b_.add(at + "position_bias", {rate, copies * head});
    b_.linear(at + "kv_proj", copies * head, d_);
    b_.linear(at + "gate_proj", copies * head, d_);
    b_.add(at + "kv_norm.weight", {head});
  }

  void add_layer(int64_t layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    add_attention(at + "self_attn.", kind_of(layer));
    const int64_t experts = b_.count("n_routed_experts"), ffn = b_.width("moe_intermediate_size");
    const int64_t hashed = b_.has("num_hash_layers") ? b_.count_or_zero("num_hash_layers") : 3;
    b_.linear(at + "mlp.gate", experts, d_);
    if (layer >= hashed) b_.add(at + "mlp.gate.e_score_correction_bias", {experts});
    add_stacks(b_, at + "mlp.experts.", experts, d_, ffn);
    add_mlp(b_, at + "mlp.shared_experts.", d_, ffn);
    b_.add(at + "input_layernorm.weight", {d_});
    b_.add(at + "post_attention_layernorm.weight", {d_});
    for (const char* name : {"attn_hc", "ffn_hc"}) {
      const int64_t mixes = hyper_ * (hyper_ + 2);
      b_.add(at + name + ".fn", {mixes, hyper_ * d_});
      b_.add(at + name + ".base", {mixes});
      b_.add(at + name + ".scale", {3});
    }
  }

  static constexpr int64_t kSparseRate = 4;
  ConfigBuilder& b_;
  const int64_t d_ = b_.width("hidden_size"), layers_ = b_.count("num_hidden_layers");
  const int64_t hyper_ = b_.count("hc_mult", 4);
};

}  // namespace

void add_deepseek_v4(ConfigBuilder& b) { DeepSeekV4(b).add(); }

}  // namespace muonrt::tool
