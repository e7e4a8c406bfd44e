#include "command/state/diff.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "command/progress.hpp"
#include "opt_json/strict_json.hpp"
#include "show/fit.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

namespace {

using Json = nlohmann::json;

/// The differences between two tensors: the number of elements whose bits differ, and the largest
/// difference (NaN if an element is NaN).
struct Distance {
  int64_t elements = 0, differ = 0;
  double largest = 0;
};

double number_at(const muonrt_checkpoint_tensor_t& tensor, const unsigned char* at) {
  uint32_t bits = 0;
  std::memcpy(&bits, at, static_cast<size_t>(element_size(tensor)));
  if (tensor.kind == MUONRT_STATE_REMAINDER) return bits;
  if (tensor.dtype == MUONRT_DTYPE_BF16) bits <<= 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

Distance distance_of(const muonrt_checkpoint_tensor_t& tensor, const std::vector<unsigned char>& a,
                     const std::vector<unsigned char>& b) {
  const auto size = static_cast<size_t>(element_size(tensor));
  Distance out{static_cast<int64_t>(a.size() / size)};
  for (size_t i = 0; i < a.size(); i += size) {
    if (std::memcmp(&a[i], &b[i], size) == 0) continue;
    ++out.differ;
    const double by = std::fabs(number_at(tensor, &a[i]) - number_at(tensor, &b[i]));
    if (by > out.largest || std::isnan(by)) out.largest = by;
  }
  return out;
}

/// Returns the text of a member of a JSON object without quotes, or "none" if there is no such
/// member.
std::string text_at(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end()) return "none";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

std::set<std::string> keys_of(const Json& a, const Json& b) {
  std::set<std::string> out;
  for (const Json* object : {&a, &b})
    for (const auto& [key, unused] : object->items()) out.insert(key);
  return out;
}

class Comparison {
 public:
  Comparison(const Saved& first, const Saved& second)
      : a_(first),
        b_(second),
        from_a_(first.open()),
        from_b_(second.open()),
        in_a_(Json::parse(from_a_.manifest())),
        in_b_(Json::parse(from_b_.manifest())) {}

  void run() {
    for (const auto& [what, key] : {std::pair{"step", "step"}, std::pair{"seed", "seed"},
                                    std::pair{"with parameters", "with_params"}})
      differ(what, text_at(in_a_, key), text_at(in_b_, key));
    std::map<std::string, const Json*> others;
    for (const Json& p : in_b_.at("params")) others[text_at(p, "name")] = &p;
    for (const Json& p : in_a_.at("params")) {
      const auto found = others.find(text_at(p, "name"));
      if (found == others.end()) {
        note_only_in(p, a_);
        continue;
      }
      compare_param(p, *found->second);
      compare_tensors(text_at(p, "name"), p.at("state"), found->second->at("state"));
      others.erase(found);
    }
    for (const Json& p : in_b_.at("params"))
      if (others.contains(text_at(p, "name"))) note_only_in(p, b_);
    progress_.clear();
  }

  void print(bool json) const {
    if (json) {
      fmt::print("{}\n", json_object({{"first", json_text(a_.path())},
                                      {"second", json_text(b_.path())},
                                      {"equal", fmt::to_string(equal())},
                                      {"differences", texts_json(lines_)},
                                      {"tensors", tensors_.json()}}));
      return;
    }
    for (const std::string& line : lines_) print_fitted(line + "\n");
    if (!lines_.empty()) fmt::print("\n");
    if (different_.rows() > 0) fmt::print("{}\n", different_.text());
    print_fitted(fmt::format("{} tensors are in both, {} differ{}\n", tensors_.rows(),
                             different_.rows(), equal() ? "; the checkpoints are equal" : ""));
  }
  bool equal() const { return lines_.empty() && different_.rows() == 0; }

 private:
  static Table table() {
    return Table({{"param", "parameter", Table::Align::kLeft},
                  {"kind", "kind", Table::Align::kLeft},
                  {"elements", "elements"},
                  {"differ", "#differ"},
                  {"largest", "largest difference"}});
  }
  void note_only_in(const Json& param, const Saved& where) {
    lines_.push_back(
        fmt::format("param {}: is only in {}", shown(text_at(param, "name")), where.path()));
  }
  bool differ(const std::string& what, const std::string& a, const std::string& b) {
    if (a != b) lines_.push_back(fmt::format("{}: {} and {}", what, a, b));
    return a != b;
  }

  void compare_param(const Json& a, const Json& b) {
    const std::string what = fmt::format("param {}: ", shown(text_at(a, "name")));
    for (const auto& [word, key] :
         {std::pair{"shape", "shape"}, std::pair{"dtype", "dtype"}, std::pair{"role", "role"},
          std::pair{"momentum", "momentum"}, std::pair{"its constant", "constant"},
          std::pair{"updates", "updates"}, std::pair{"key of random rounding", "key"},
          std::pair{"NorMuon's neurons", "lines"}})
      differ(what + word, text_at(a, key), text_at(b, key));
    // If only one checkpoint contains parameters, report this once instead of for each parameter.
    const Json &state_a = a.at("state"), &state_b = b.at("state");
    const std::string param = kind_text(MUONRT_STATE_PARAM);
    const bool one_saved = state_a.contains(param) != state_b.contains(param);
    for (const std::string& word : keys_of(state_a, state_b))
      if (word != param || !one_saved)
        differ(what + word, text_at(state_a, word), text_at(state_b, word));
    if (!state_a.contains(param) || !state_b.contains(param))
      differ(what + "hash of its values", text_at(a, "hash"), text_at(b, "hash"));
    compare_groups(a, b);
  }

  /// Compares each pair of groups once, even if multiple parameters belong to it.
  void compare_groups(const Json& a, const Json& b) {
    const size_t at_a = a.at("group"), at_b = b.at("group");
    if (!seen_.insert({at_a, at_b}).second) return;
    const Json &one = in_a_.at("groups").at(at_a), &other = in_b_.at("groups").at(at_b);
    for (const std::string& name : keys_of(one, other))
      differ(fmt::format("group of param {}: {}", shown(text_at(a, "name")), name),
             text_at(one, name), text_at(other, name));
  }

  /// Compares the tensors that both checkpoints have in the same dtype.
  void compare_tensors(const std::string& param, const Json& state_a, const Json& state_b) {
    for (int32_t kind = MUONRT_STATE_PARAM; kind <= MUONRT_STATE_NORMUON; ++kind) {
      const std::string word = kind_text(kind), dtype = text_at(state_a, word);
      if (dtype == "none" || dtype != text_at(state_b, word)) continue;
      const auto as_enum = static_cast<muonrt_state_kind>(kind);
      const int64_t at_a = from_a_.find_tensor(param, as_enum);
      const int64_t at_b = from_b_.find_tensor(param, as_enum);
      const muonrt_checkpoint_tensor_t a = from_a_.tensor(at_a), b = from_b_.tensor(at_b);
      progress_.show("diff: " + tensor_text(a));
      if (differ(tensor_text(a) + ": elements", fmt::to_string(a.bytes / element_size(a)),
                 fmt::to_string(b.bytes / element_size(b))))
        continue;
      const Distance d = distance_of(a, from_a_.read(at_a), from_b_.read(at_b));
      for (Table* table : {&tensors_, &different_})
        if (table == &tensors_ || d.differ > 0)
          table->add({cell::word(param), cell::word(word), cell::grouped(d.elements),
                      cell::grouped(d.differ), cell::scientific(d.largest)});
    }
  }

  const Saved &a_, &b_;
  Checkpoint from_a_, from_b_;
  const Json in_a_, in_b_;
  std::set<std::pair<size_t, size_t>> seen_;
  std::vector<std::string> lines_;
  Table tensors_ = table(), different_ = table();
  Progress progress_;
};

}  // namespace

bool diff_checkpoints(const Saved& first, const Saved& second, bool json) {
  Comparison comparison(first, second);
  comparison.run();
  comparison.print(json);
  return comparison.equal();
}

}  // namespace muonrt::tool
