#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "optimizer/routing.hpp"

namespace muonrt {

// This namespace has a name because unity builds merge the anonymous namespaces of multiple files.
namespace routing_words {

namespace {

using Words = std::vector<std::string>;
using Set = std::initializer_list<std::string_view>;

// These words name the type of a component. Digits at the end of a word are ignored, so fc2 is
// treated as fc.
const Set kMatrix = {
    "adapter",     "attention", "attn",       "conv", "dense", "down",           "fc",
    "ffn",         "gate",      "k",          "key",  "kv",    "linear",         "linears",
    "mapping",     "mlp",       "modulation", "o",    "proj",  "project",        "projection",
    "projections", "projector", "projs",      "q",    "qkv",   "query",          "reduction",
    "router",      "transform", "up",         "v",    "value", "transformation", "wk",
    "wo",          "wq",        "wv"};
const Set kMatrixFirst = {"dense", "fc", "linear", "proj", "project", "to"};
const Set kEmbedding = {"emb", "embs", "embd", "wpe", "wte"};
const Set kEmbeddingEnds = {"embed", "embeds", "embedding", "embeddings", "embedder"};
const Set kTable = {"codebook",   "codebooks",  "codevectors", "latents", "pos",
                    "position",   "positional", "positions",   "prompt",  "prompts",
                    "prototypes", "table",      "token",       "tokens"};
const Set kTableIfLeaf = {"latent", "probe", "queries", "query", "registers"};
const Set kHead = {"classifier", "classifiers", "head",         "heads",  "lmhead",
                   "logit",      "logits",      "pred",         "preds",  "prediction",
                   "readout",    "regressor",   "relationship", "reward", "rewards",
                   "score",      "scorer",      "predictions",  "unemb"};
// Words in kHead that name an output head only outside numbered layers.
const Set kHeadOutside = {"pred",   "prediction", "predictions",  "preds", "readout",
                          "reward", "rewards",    "relationship", "score", "scorer"};
// Words that may follow a word in kHead and name a layer of that head, as in lm_head_proj and
// pred_layer.
const Set kOfHead = {"fc", "layer", "layers", "linear", "out", "proj", "projection"};
const Set kVector = {"alpha", "beta",  "decay",  "gain",  "gains", "gamma",
                     "log",   "scale", "scales", "shift", "sinks", "temperature"};
const Set kNorm = {"bn", "gn", "ln", "norms", "layernorms"};
const Set kExpert = {"expert", "experts", "moe"};
const Set kConvolution = {"deconv", "downsample", "stem", "upsample"};
const Set kDepthwise = {"conv1d", "depthwise", "dw", "dwconv"};
// Words that name a numbered layer if digits follow them.
const Set kNumbered = {"block", "h", "layer", "stage"};
// Words at the end of a component that only distinguish it from similar ones, as in proj_out and
// ln_f.
const Set kSide = {"a", "b", "f", "in", "l", "out", "r", "weight", "weights", "kernel"};
// Components that may come between a parameter and the module that it belongs to.
const Set kWithin = {"weight",     "weights",         "kernel",           "qweight",
                     "base_layer", "original_module", "parametrizations", "original",
                     "original0",  "original1",       "weight_v",         "weight_g"};
// Components that are layers of an output head if their parent is a head. Other components of a
// head, such as lm_head.dense, are hidden layers.
const Set kLayersOfHead = {"classifier", "decoder", "fc",       "final",  "final layer",
                           "head",       "last",    "layer",    "layers", "last layer",
                           "linear",     "out",     "out proj", "output", "output layer",
                           "outputs",    "proj",    "proj out", "score",  "projection",
                           "regression", "summary"};
// Components that name the output layer of a model if their parents are only containers.
const Set kOutputs = {"conv out",      "ff out",
                      "generator",     "final",
                      "final linear",  "final proj",
                      "last layer",    "final projection",
                      "last linear",   "out",
                      "out layer",     "output",
                      "output linear", "output projection",
                      "output proj",   "outputs",
                      "proj out"};
const Set kContainers = {"base model", "decoder",    "gpt",        "language model",
                         "lm",         "model",      "module",     "net",
                         "network",    "text model", "transformer"};
// Components that name the output layer of a model, except within numbered layers.
const Set kOutputLayers = {"action net", "class predictor",  "final layer",  "head dist",
                           "objective",  "out layers",       "output layer", "output layers",
                           "qa outputs", "regression layer", "value net"};
// First words of components that name the output layer of a model, except within numbered layers.
// Examples are ctc_proj and predict_action.
const Set kOutputFirst = {"ctc", "predict"};
// Modules that predict boxes. They have the same layers as a head.
const Set kBoxes = {"bbox embed", "bbox predictor", "box embed", "box predictor"};

bool is_in(Set set, std::string_view word) {
  return std::find(set.begin(), set.end(), word) != set.end();
}

struct Component {
  std::string_view text;
  Words words;
  bool numbered = false;  // true for "3", "layers_3" and "h3", for example

  bool empty() const { return words.empty(); }
  std::string joined() const {
    std::string out;
    for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
    return out;
  }
  bool has(Set set) const {
    return std::any_of(words.begin(), words.end(), [&](const auto& w) { return is_in(set, w); });
  }
  bool has_last(Set set) const { return !empty() && is_in(set, words.back()); }
};

bool is_upper(char c) { return std::isupper(static_cast<unsigned char>(c)) != 0; }
bool is_lower(char c) { return std::islower(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// Splits a component at characters that are neither letters nor digits, and at the capitals of
/// camelCase.
Component component_of(std::string_view text) {
  Component out{text, {}, false};
  std::string word;
  const auto end_word = [&] {
    if (word.empty()) return;
    const size_t letters = word.find_last_not_of("0123456789") + 1;
    if (letters > 0) out.words.push_back(word.substr(0, letters));
    out.numbered = out.numbered || letters == 0 ||
                   (letters < word.size() && is_in(kNumbered, out.words.back()));
    word.clear();
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool letter = is_upper(c) || is_lower(c);
    const bool hump = is_upper(c) && i > 0 &&
                      (is_lower(text[i - 1]) ||
                       (is_upper(text[i - 1]) && i + 1 < text.size() && is_lower(text[i + 1])));
    if (hump || !(letter || is_digit(c))) end_word();
    if (letter || is_digit(c)) word += static_cast<char>(is_upper(c) ? c - 'A' + 'a' : c);
  }
  end_word();
  return out;
}

/// A name that is divided into components. `subject` is the parameter, or its module if the name of
/// the parameter has no meaning, as in "weight". `parents` are the components before it.
struct Path {
  std::vector<Component> parents;  // outermost first, without numbers
  Component subject;
  bool in_layer = false;      // true if a parent is numbered
  bool in_attention = false;  // true if a parent is, for example, self_attn
  bool leaf = true;           // true if the subject is the parameter itself and not a module
  bool adapter = false;       // true for an adapter of an embedding (LoRA)
  Words words;                // words of the whole name

  const Component& parent() const {
    static const Component none;
    return parents.empty() ? none : parents.back();
  }
};

Path path_of(std::string_view name) {
  std::vector<Component> all;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find_first_of("./", begin), name.size());
    all.push_back(component_of(name.substr(begin, end - begin)));
    begin = end + 1;
  }
  Path out;
  for (const Component& c : all) {
    out.words.insert(out.words.end(), c.words.begin(), c.words.end());
  }
  // Names of adapters in peft, such as q_proj.lora_A.default.weight and
  // score.modules_to_save.default.weight.
  for (size_t i = 1; i < all.size(); ++i) {
    const bool lora = !all[i].empty() && all[i].words.front() == "lora";
    if (!lora && all[i].text != "modules_to_save") continue;
    out.adapter = lora && all[i].has(kEmbeddingEnds);
    all.resize(i);
    out.leaf = false;
    break;
  }
  while (all.size() > 1 && (is_in(kWithin, all.back().text) || all.back().empty())) {
    all.pop_back();
    out.leaf = false;
  }
  if (is_in(kWithin, all.back().text)) all.back().words.clear();
  out.subject = all.back();
  all.pop_back();
  for (const Component& c : all) {
    out.in_layer = out.in_layer || c.numbered;
    out.in_attention = out.in_attention || c.has({"attention", "attn"});
    if (!c.empty()) out.parents.push_back(c);
  }
  return out;
}

/// Returns true if `words` are consecutive words of the list.
bool contains(const Words& list, const Words& words) {
  return std::search(list.begin(), list.end(), words.begin(), words.end()) != list.end();
}

bool has_key(const std::vector<std::string>& keys, const Path& path) {
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& key) {
    const Words words = component_of(key).words;
    return !words.empty() && contains(path.words, words);
  });
}

bool ends_with(std::string_view word, Set ends) {
  return std::any_of(ends.begin(), ends.end(), [&](auto end) { return word.ends_with(end); });
}

/// Returns true if the last word that is not in kSide names a matrix, as in embed_proj and
/// mapping_in.
bool is_matrix(const Component& c) {
  if (c.empty()) return false;
  if (is_in(kMatrixFirst, c.words.front())) return true;
  const auto last = std::find_if(c.words.rbegin(), c.words.rend(),
                                 [](const std::string& word) { return !is_in(kSide, word); });
  return last != c.words.rend() && (is_in(kMatrix, *last) || last->starts_with("conv"));
}

bool is_embedding(const Component& c) {
  return !is_matrix(c) && std::any_of(c.words.begin(), c.words.end(), [](const auto& word) {
    return is_in(kEmbedding, word) || ends_with(word, kEmbeddingEnds);
  });
}

bool is_norm(const Component& c) {
  return !is_matrix(c) && std::any_of(c.words.begin(), c.words.end(), [](const auto& word) {
    return is_in(kNorm, word) || word.ends_with("norm");
  });
}

/// Returns true for an output head. Attention heads are not output heads, and pre_classifier and
/// pre_logits are hidden layers. v_head, which predicts values, and q_heads are output heads only
/// outside layers and attention.
bool is_head(const Component& c, const Path& path) {
  const bool outside = !path.in_layer && !path.in_attention;
  auto last = c.words.rbegin();
  while (outside && last != c.words.rend() && is_in(kOfHead, *last)) ++last;
  const bool named = last != c.words.rend() && is_in(kHead, *last);
  if (!named && !c.has({"logit", "logits"})) return false;
  if (c.has({"pre", "attn", "attention", "conv", "multi"})) return false;
  if (c.has({"q", "k", "v"}) && !(outside && c.words.size() == 2 && !c.has({"k"}))) return false;
  return !path.in_layer || !c.has_last(kHeadOutside);
}

bool is_output(const Path& path) {
  const Component& c = path.subject;
  const std::string words = c.joined(), parent = path.parent().joined();
  if (is_head(c, path)) return !path.parent().has({"router"});
  if (words == "decoder" || (c.has({"vocab"}) && !c.has_last({"transform"}))) return true;
  if (is_in(kLayersOfHead, words) && (is_in(kBoxes, parent) || is_head(path.parent(), path)))
    return true;
  if (path.in_layer) return false;
  if (is_in(kOutputLayers, words) || (!c.empty() && is_in(kOutputFirst, c.words.front())))
    return true;
  if (is_in(kOutputLayers, parent) && is_in(kLayersOfHead, words)) return true;
  if (parent == "generator" && words == "proj") return true;
  return (is_in(kOutputs, words) || c.text == "fc") &&
         std::all_of(path.parents.begin(), path.parents.end(),
                     [](const Component& p) { return is_in(kContainers, p.joined()); });
}

/// Returns true for a convolution or matrix that embeds patches, as in patch_embed.proj and
/// x_embedder.proj.
bool is_patch_embedding(const Path& path, int32_t ndim) {
  const Component& parent = path.parent();
  if (!is_embedding(parent) ||
      !path.subject.has_last({"proj", "projection", "conv", "convolution"}))
    return false;
  return ndim >= 3 || parent.has({"image", "input", "patch", "patches", "pixel", "x"});
}

/// Returns the reason why AdamW updates the parameter, or an empty string if Muon updates it.
std::string_view what_for_adamw(const Path& path, int32_t ndim) {
  const Component& c = path.subject;
  const bool vector = path.leaf && c.has_last(kVector) && !is_matrix(c);
  if (vector || c.has_last({"bias", "biases"}) || c.joined() == "ia l") return "vector";
  const bool in_embedding = path.leaf && ndim == 2 && is_embedding(path.parent()) && !is_matrix(c);
  if (path.adapter || is_embedding(c) || in_embedding || (c.joined() == "shared" && !path.in_layer))
    return "embedding";
  if (is_output(path)) return "output head";
  if (is_patch_embedding(path, ndim)) return "patch embedding";
  if (is_norm(c)) return "norm";
  if (c.joined() == "shared expert gate") return "gate of one row";
  const bool relative = contains(c.words, {"rel", "pos"}) || contains(c.words, {"emb", "rel"});
  if ((c.has(kTable) && !is_matrix(c)) || (relative && !c.has({"linear", "proj"})) ||
      (path.leaf && c.has_last(kTableIfLeaf) && ndim >= 3) ||
      (path.leaf && !c.empty() && c.words.front() == "time" && !c.has({"w"})))
    return "table";
  if (ndim >= 3 && (c.has(kDepthwise) || contains(c.words, {"conv", "d"})))
    return "depthwise convolution";
  return {};
}

std::string reason_of(std::string_view what, const Path& path) {
  return cat(what, " ('", path.subject.empty() ? path.parent().text : path.subject.text, "')");
}

}  // namespace

}  // namespace routing_words

Route route(const RoutingRules& rules, std::string_view name, int32_t ndim) {
  using namespace routing_words;
  MUONRT_REQUIRE(ndim >= 0, Status::kInvalidArgument, "route: '", name, "' has ", ndim,
                 " dimensions; pass 0 or more");
  if (ndim < 2) return {Role::kAdamW, View::kNone, "fewer than two dimensions"};
  const std::string normalized = normalize_name(name);
  const Path path = path_of(normalized);
  if (has_key(rules.adamw_keys, path)) return {Role::kAdamW, View::kNone, "key of the caller"};
  const std::string_view what = what_for_adamw(path, ndim);
  if (!what.empty()) return {Role::kAdamW, View::kNone, reason_of(what, path)};
  if (ndim == 2) return {Role::kMuon, View::kNone, "matrix"};
  const bool experts = std::any_of(path.words.begin(), path.words.end(),
                                   [](const auto& word) { return is_in(kExpert, word); });
  if (ndim == 3 && (experts || has_key(rules.expert_keys, path)))
    return {Role::kMuon, View::kStack, "stack of experts"};
  const bool convolution =
      path.subject.has(kConvolution) ||
      std::any_of(path.subject.words.begin(), path.subject.words.end(),
                  [](const std::string& word) { return word.starts_with("conv"); });
  if (convolution || (ndim >= 4 && !path.leaf && !experts))
    return {Role::kMuon, View::kFlatten, "kernel"};
  throw make_error(Status::kInvalidArgument, "route: '", name, "' has ", ndim,
                   " dimensions, and the name does not show whether they are a stack of experts or "
                   "a kernel; add a key of the name to expert_keys or adamw_keys, or set the role "
                   "and the view of the parameter");
}

}  // namespace muonrt
