#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "muonrt/muonrt.hpp"

// Tests QK-clip settings that apply by parameter name, so that one muonrt_qk_clip_t serves all
// parameters of a model. The learning rate is 0 and the weights are 1, so after the step each row
// is equal to its factor.

namespace {

constexpr int64_t kCols = 5;

/// Returns the gamma of a query head. Head 3 of each layer is below the threshold.
double gamma(int64_t layer, int64_t head) {
  return head == 3 ? 1.0 : 1.0 / static_cast<double>(2 + layer + head);
}
/// Returns the gamma of a key head that two query heads share.
double shared(int64_t layer, int64_t key) {
  return std::min(gamma(layer, 2 * key), gamma(layer, 2 * key + 1));
}

using Factor = std::function<double(int64_t layer, int64_t row)>;
struct Weight {
  const char* before;  // the part of the name before the layer number
  const char* after;
  int64_t rows;  // 0 means a vector
  Factor factor;
};
struct Model {
  const char* what;
  muonrt_qk_clip_t clip;
  std::vector<Weight> weights;
};

muonrt_qk_clip_t settings(int32_t kv_heads, int32_t head_dim, int32_t nope = 0, int32_t rope = 0,
                          int32_t v_dim = 0) {
  muonrt_qk_clip_t c = muonrt::qk_clip();
  c.kind = MUONRT_QK_FROM_NAME;
  c.heads = 4;
  c.kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.nope = nope;
  c.rope = rope;
  c.v_dim = v_dim;
  return c;
}

const Factor kOne = [](int64_t, int64_t) { return 1.0; };
const Factor kQuery = [](int64_t layer, int64_t row) { return std::sqrt(gamma(layer, row / 3)); };
const Factor kKey = [](int64_t layer, int64_t row) { return std::sqrt(shared(layer, row / 3)); };
const Factor kMlaQuery = [](int64_t layer, int64_t row) {
  const double g = gamma(layer, row / 5);
  return row % 5 < 3 ? std::sqrt(g) : g;
};
const Factor kMlaKeys = [](int64_t layer, int64_t row) {
  return row % 7 < 3 ? std::sqrt(gamma(layer, row / 7)) : 1.0;
};
const Factor kGroups = [](int64_t layer, int64_t row) {
  const int64_t group = row / 12, head = row % 12 / 3;
  if (head == 3) return 1.0;
  return std::sqrt(head == 2 ? shared(layer, group) : gamma(layer, 2 * group + head));
};
const Factor kBlocks = [](int64_t layer, int64_t row) {
  const int64_t head = row / 3;
  if (head >= 6) return 1.0;
  return std::sqrt(head >= 4 ? shared(layer, head - 4) : gamma(layer, head));
};

std::vector<Model> models() {
  return {
      {"Llama and Qwen, grouped queries",
       settings(2, 3),
       {{"model.layers.", ".self_attn.q_proj.weight", 12, kQuery},
        {"model.layers.", ".self_attn.q_proj.bias", 0, kOne},
        {"model.layers.", ".self_attn.k_proj.weight", 6, kKey},
        {"model.layers.", ".self_attn.v_proj.weight", 6, kOne},
        {"model.layers.", ".self_attn.q_norm.weight", 0, kOne},
        {"model.layers.", ".mlp.up_proj.weight", 12, kOne}}},
      {"torchtitan, compiled and wrapped",
       settings(2, 3),
       {{"module.layers.", "._orig_mod.attention.wq.weight", 12, kQuery},
        {"module.layers.", "._orig_mod.attention.wk._fsdp_wrapped_module.weight", 6, kKey}}},
      {"DeepSeek",
       settings(0, 5, 3, 2, 4),
       {{"layers.", ".attn.wq_a.weight", 8, kOne},
        {"layers.", ".attn.wq_b.weight", 20, kMlaQuery},
        {"layers.", ".attn.wkv_a.weight", 8, kOne},
        {"layers.", ".attn.wkv_b.weight", 28, kMlaKeys}}},
      {"DeepSeek of transformers, and a gate that logits do not depend on",
       settings(4, 0, 3, 2, 4),
       {{"model.layers.", ".self_attn.q_b_proj.weight", 20, kMlaQuery},
        {"model.layers.", ".self_attn.wq_b_gate.weight", 20, kOne},
        {"model.layers.", ".self_attn.kv_a_proj_with_mqa.weight", 8, kOne},
        {"model.layers.", ".self_attn.kv_b_proj.weight", 28, kMlaKeys}}},
      {"Moonlight, whose queries have no low rank",
       settings(0, 0, 3, 2, 4),
       {{"model.layers.", ".self_attn.q_proj.weight", 20, kMlaQuery},
        {"model.layers.", ".self_attn.kv_b_proj.weight", 28, kMlaKeys}}},
      {"Megatron",
       settings(2, 3),
       {{"decoder.layers.", ".self_attention.linear_qkv.weight", 24, kGroups}}},
      {"GPT-NeoX", settings(2, 3), {{"layers.", ".attention.query_key_value.weight", 24, kGroups}}},
      {"nanoGPT", settings(2, 3), {{"transformer.h.", ".attn.c_attn.weight", 24, kBlocks}}},
      {"Phi-3", settings(2, 3), {{"model.layers.", ".self_attn.qkv_proj.weight", 24, kBlocks}}}};
}

/// The parameters of a model, which a test adds one by one, and an optimizer for them.
struct Trainer {
  std::vector<std::string> names;
  std::vector<std::array<int64_t, 2>> shapes;
  std::vector<std::vector<float>> data, grads;
  std::vector<muonrt_param_t> params;

  void add(const std::string& name, int64_t rows) {
    names.push_back(name);
    shapes.push_back({rows > 0 ? rows : kCols, kCols});
    data.emplace_back(static_cast<size_t>((rows > 0 ? rows : 1) * kCols), 1.0f);
    grads.push_back(data.back());
  }
  muonrt::Optimizer create(const muonrt_qk_clip_t& clip) {
    for (size_t i = 0; i < names.size(); ++i) {
      const bool matrix = data[i].size() > static_cast<size_t>(kCols);
      muonrt_param_t p = muonrt::param();
      p.name = names[i].c_str();
      p.group = matrix ? 0 : 1;
      p.ndim = matrix ? 2 : 1;
      p.shape = shapes[i].data();
      p.data = data[i].data();
      p.grad = grads[i].data();
      p.qk_clip = &clip;
      params.push_back(p);
    }
    muonrt::Comm comm = muonrt::Comm::self();
    return {comm, muonrt::options(), {muonrt::muon_group(), muonrt::adamw_group()}, params};
  }
};

}  // namespace

TEST_CASE("qk-clip by name: one struct for the parameters of a model clips the rows of each kind",
          "[unit][abi][qkclip]") {
  for (const Model& model : models()) {
    INFO(model.what);
    constexpr int64_t kLayers[] = {0, 1, 12};
    Trainer t;
    for (const int64_t layer : kLayers)
      for (const Weight& w : model.weights)
        t.add(w.before + std::to_string(layer) + w.after, w.rows);
    muonrt::Optimizer optimizer = t.create(model.clip);
    REQUIRE(optimizer.qk_layers() ==
            std::vector<std::pair<int32_t, int32_t>>{{0, 4}, {1, 4}, {12, 4}});
    std::vector<float> logits;
    for (const int64_t layer : kLayers)
      for (int64_t head = 0; head < 4; ++head)
        logits.push_back(static_cast<float>(100.0 / gamma(layer, head)));
    muonrt_step_args_t args = muonrt::step_args();
    args.lr = 0;
    args.qk_logits = logits.data();
    args.n_qk_logits = std::ssize(logits);
    CHECK(optimizer.step(args).clipped_heads == 9);
    for (size_t i = 0; i < t.data.size(); ++i) {
      INFO(t.names[i]);
      const Weight& w = model.weights[i % model.weights.size()];
      for (size_t e = 0; e < t.data[i].size(); ++e) {
        const double expected =
            w.factor(kLayers[i / model.weights.size()], static_cast<int64_t>(e) / kCols);
        REQUIRE(std::abs(t.data[i][e] - expected) <= 2e-7 * expected);
      }
    }
  }
}

TEST_CASE("qk-clip by name: a name that does not determine the rows is an error that names it",
          "[unit][abi][qkclip]") {
  struct Row {
    std::vector<std::pair<const char*, int64_t>> params;
    muonrt_qk_clip_t clip;
    std::vector<const char*> words;
  };
  muonrt_qk_clip_t by_layer = settings(2, 3);
  by_layer.kind = MUONRT_QK_KEY;
  by_layer.layer = -1;
  const std::vector<Row> rows = {
      {{{"attn.wq.weight", 12}}, settings(2, 3), {"'attn.wq.weight'", "layer by the name is -1"}},
      {{{"layers.2097152.wq.weight", 12}}, settings(2, 3), {"2097152", "1048576"}},
      {{{"key.weight", 6}}, by_layer, {"'key.weight'", "'k'", "layer by the name is -1"}},
      {{{"layers.1.wk.weight", 6}}, settings(2, 0, 3, 2, 4), {"'layers.1.wk.weight'", "nope is 3"}},
      {{{"layers.1.wq_b.weight", 20}},
       settings(2, 4, 3, 2, 4),
       {"head_dim is 4", "nope + rope is 5"}},
      {{{"layers.1.wq.weight", 9}}, settings(2, 3), {"kind 'q'", "give 12 rows"}},
      {{{"encoder.layers.1.wq.weight", 12}, {"decoder.layers.1.wq.weight", 12}},
       settings(2, 3),
       {"'decoder.layers.1.wq.weight'", "queries of layer 1", "'encoder.layers.1.wq.weight'"}},
      {{{"layers.1.wk.weight", 6}, {"layers.1.linear_qkv.weight", 24}},
       settings(2, 3),
       {"'layers.1.linear_qkv.weight'", "keys of layer 1", "'layers.1.wk.weight'"}}};
  for (const Row& row : rows) {
    Trainer t;
    for (const auto& [name, size] : row.params) t.add(name, size);
    try {
      t.create(row.clip);
      FAIL("accepted " << row.params.front().first);
    } catch (const muonrt::Error& error) {
      for (const char* word : row.words) CHECK_THAT(error.what(), Catch::Contains(word));
    }
  }
  // If `kind` is set, only the layer is read from the name.
  Trainer t;
  t.add("blocks.7.key", 6);
  CHECK(t.create(by_layer).qk_layers() == std::vector<std::pair<int32_t, int32_t>>{{7, 4}});
}
