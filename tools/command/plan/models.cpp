#include "command/plan/models.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <stdexcept>

#include "layout/strategies.hpp"

namespace muonrt::tool {

namespace {

// Sources: llm.c (GPT-2), the published configurations of Llama 3, Qwen3, Moonlight, DeepSeek-V3
// and Kimi K2; their totals are in tests/cli/plan.

using Tensors = std::vector<ModelTensor>;
using Named = std::pair<const char*, std::vector<int64_t>>;

void add(Tensors& to, const std::string& name, std::vector<int64_t> shape, bool muon) {
  to.push_back({name, std::move(shape), muon, {}});
}

/// Embedding, layers, norm and a separate head.
template <class AddLayer>
Tensors language_model(int64_t d, int64_t layers, int64_t vocab, AddLayer add_layer_to) {
  Tensors out;
  add(out, "embed", {vocab, d}, false);
  for (int64_t l = 0; l < layers; ++l) add_layer_to(out, l);
  add(out, "norm", {d}, false);
  add(out, "head", {vocab, d}, false);
  return out;
}

/// Matrices and stacks of a layer are for Muon, its vectors for AdamW.
void add_layer(Tensors& to, int64_t layer, const std::vector<Named>& tensors) {
  for (const auto& [name, shape] : tensors) {
    add(to, fmt::format("layers.{}.{}", layer, name), shape, shape.size() > 1);
  }
}

struct Llama {
  int64_t d, layers, heads, kv_heads, ffn, vocab;
};
Tensors llama(const Llama& m) {
  const int64_t kv = m.kv_heads * (m.d / m.heads);
  return language_model(m.d, m.layers, m.vocab, [&](Tensors& out, int64_t l) {
    add_layer(out, l,
              {{"attn_norm", {m.d}},
               {"q", {m.d, m.d}},
               {"k", {kv, m.d}},
               {"v", {kv, m.d}},
               {"o", {m.d, m.d}},
               {"ffn_norm", {m.d}},
               {"gate", {m.ffn, m.d}},
               {"up", {m.ffn, m.d}},
               {"down", {m.d, m.ffn}}});
  });
}

struct Qwen3Moe {
  int64_t d, layers, heads, kv_heads, head_dim, experts, expert_ffn, vocab;
};
Tensors qwen3_moe(const Qwen3Moe& m) {
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  return language_model(m.d, m.layers, m.vocab, [&](Tensors& out, int64_t l) {
    add_layer(out, l,
              {{"attn_norm", {m.d}},
               {"q", {q, m.d}},
               {"k", {kv, m.d}},
               {"v", {kv, m.d}},
               {"o", {m.d, q}},
               {"q_norm", {m.head_dim}},
               {"k_norm", {m.head_dim}},
               {"ffn_norm", {m.d}},
               {"router", {m.experts, m.d}},
               {"experts_gate", {m.experts, m.expert_ffn, m.d}},
               {"experts_up", {m.experts, m.expert_ffn, m.d}},
               {"experts_down", {m.experts, m.d, m.expert_ffn}}});
  });
}

/// Multi-head latent attention, the first layers dense: DeepSeek-V3 and its relatives.
struct Latent {
  int64_t d, layers, dense, heads, ffn, expert_ffn, experts, shared, q_rank, kv_rank, vocab;
};
Tensors latent(const Latent& m) {
  constexpr int64_t kNope = 128, kRope = 64, kValue = 128;
  const int64_t q = m.heads * (kNope + kRope), shared = m.expert_ffn * m.shared;
  return language_model(m.d, m.layers, m.vocab, [&](Tensors& out, int64_t l) {
    add_layer(out, l, {{"attn_norm", {m.d}}, {"ffn_norm", {m.d}}});
    if (m.q_rank > 0) {
      add_layer(out, l,
                {{"q_a", {m.q_rank, m.d}}, {"q_a_norm", {m.q_rank}}, {"q_b", {q, m.q_rank}}});
    } else {
      add_layer(out, l, {{"q", {q, m.d}}});
    }
    add_layer(out, l,
              {{"kv_a", {m.kv_rank + kRope, m.d}},
               {"kv_a_norm", {m.kv_rank}},
               {"kv_b", {m.heads * (kNope + kValue), m.kv_rank}},
               {"o", {m.d, m.heads * kValue}}});
    if (l < m.dense) {
      add_layer(out, l, {{"gate", {m.ffn, m.d}}, {"up", {m.ffn, m.d}}, {"down", {m.d, m.ffn}}});
      return;
    }
    add_layer(out, l,
              {{"router", {m.experts, m.d}},
               {"router_bias", {m.experts}},
               {"experts_gate", {m.experts, m.expert_ffn, m.d}},
               {"experts_up", {m.experts, m.expert_ffn, m.d}},
               {"experts_down", {m.experts, m.d, m.expert_ffn}},
               {"shared_gate", {shared, m.d}},
               {"shared_up", {shared, m.d}},
               {"shared_down", {m.d, shared}}});
  });
}

/// As in llm.c: fused QKV, biases, tied head.
Tensors gpt2() {
  constexpr int64_t kVocab = 50257, kContext = 1024, d = 768, kLayers = 12;
  Tensors out;
  add(out, "wte", {kVocab, d}, false);
  add(out, "wpe", {kContext, d}, false);
  for (int64_t l = 0; l < kLayers; ++l) {
    add_layer(out, l,
              {{"ln1w", {d}},
               {"ln1b", {d}},
               {"qkvw", {3 * d, d}},
               {"qkvb", {3 * d}},
               {"attprojw", {d, d}},
               {"attprojb", {d}},
               {"ln2w", {d}},
               {"ln2b", {d}},
               {"fcw", {4 * d, d}},
               {"fcb", {4 * d}},
               {"fcprojw", {d, 4 * d}},
               {"fcprojb", {d}}});
  }
  add(out, "lnfw", {d}, false);
  add(out, "lnfb", {d}, false);
  return out;
}

const std::map<std::string, Tensors>& models() {
  static const std::map<std::string, Tensors> list = {
      {"gpt2-124m", gpt2()},
      {"llama3-8b", llama({4096, 32, 32, 8, 14336, 128256})},
      {"llama3-70b", llama({8192, 80, 64, 8, 28672, 128256})},
      {"qwen3-30b-a3b", qwen3_moe({2048, 48, 32, 4, 128, 128, 768, 151936})},
      {"moonlight-16b-a3b", latent({2048, 27, 1, 16, 11264, 1408, 64, 2, 0, 512, 163840})},
      {"deepseek-v3", latent({7168, 61, 3, 128, 18432, 2048, 256, 1, 1536, 512, 129280})},
      {"kimi-k2", latent({7168, 61, 1, 64, 18432, 2048, 384, 1, 1536, 512, 163840})},
  };
  return list;
}

std::vector<int64_t> sizes_of(const std::string& item) {
  std::vector<int64_t> out;
  const char* at = item.data();
  const char* end = at + item.size();
  for (;;) {
    int64_t n = 0;
    const auto [next, error] = std::from_chars(at, end, n);
    if (error != std::errc() || n < 1 || (next != end && *next != 'x')) return {};
    out.push_back(n);
    if (next == end) return out;
    at = next + 1;
  }
}

}  // namespace

uint64_t ModelTensor::seed() const {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

int64_t ModelTensor::matrices() const {
  if (!muon) return 0;
  return (stack() ? shape[0] : 1) * std::max<int64_t>(1, std::ssize(parts));
}

int64_t ModelTensor::elements() const {
  int64_t out = 1;
  for (const int64_t n : shape) out *= n;
  return out;
}

std::vector<std::string> model_names() {
  std::vector<std::string> out;
  for (const auto& [name, tensors] : models()) out.push_back(name);
  return out;
}

std::vector<ModelTensor> model_tensors(const std::string& text) {
  constexpr int64_t kMaxTensors = 1 << 20;  // fifteen times as many as the largest model has
  const auto known = models().find(text);
  if (known != models().end()) return known->second;
  Tensors out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at);
    std::vector<int64_t> sizes = sizes_of(item);
    if (sizes.empty() || sizes.size() > 3) {
      throw std::runtime_error(
          fmt::format("'{}' is no shape and no model; write rows x columns x how many, such as "
                      "768x768x4,3072x768, or one of {}",
                      item, fmt::join(model_names(), ", ")));
    }
    const int64_t copies = sizes.size() == 3 ? sizes[2] : 1;
    if (copies > kMaxTensors - std::ssize(out)) {
      throw std::runtime_error(
          fmt::format("'{}': more than {} tensors; ask for fewer", text, kMaxTensors));
    }
    sizes.resize(std::min<size_t>(sizes.size(), 2));
    for (int64_t i = 0; i < copies; ++i) {
      add(out, fmt::format("{}.{}", fmt::join(sizes, "x"), out.size()), sizes, sizes.size() == 2);
    }
    at = end + 1;
  }
  return out;
}

ModelTotals totals(const std::vector<ModelTensor>& tensors) {
  ModelTotals out;
  for (const ModelTensor& t : tensors) {
    ++out.tensors;
    out.elements += t.elements();
    out.muon_tensors += t.muon;
    out.muon_matrices += t.matrices();
    if (t.muon) out.muon_elements += t.elements();
  }
  return out;
}

std::vector<Placement> named_placements(const Mesh& mesh, const ModelTensor& tensor) {
  const int rows = tensor.stack() ? 1 : 0;
  std::vector<Placement> out(static_cast<size_t>(mesh.dims()));
  for (int d = 0; d < mesh.dims(); ++d) {
    const MeshUse use = mesh_use(mesh, d);
    const int cut = use == MeshUse::kShard                               ? rows
                    : use == MeshUse::kTensor && tensor.shape.size() > 1 ? rows + 1
                    : use == MeshUse::kExpert && tensor.stack()          ? 0
                                                                         : -1;
    if (cut >= 0) out[static_cast<size_t>(d)] = {PlacementKind::kShard, cut, 1};
  }
  return out;
}

}  // namespace muonrt::tool
