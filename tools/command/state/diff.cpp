#include "command/state/diff.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "command/progress.hpp"
#include "show/table.hpp"
#include "state/conversions.hpp"
#include "state/digits.hpp"

namespace muonrt::tool {

namespace {

/// The number of elements whose bits differ, and the largest difference; NaN if an element is NaN.
struct Distance {
  int64_t elements = 0, differ = 0;
  double largest = 0;
};

double number_at(const std::string& dtype, const unsigned char* at) {
  if (dtype != "U16") return value_at(dtype, at);
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}

void compare(Distance& out, const std::string& dtype, const unsigned char* a,
             const unsigned char* b, int64_t count) {
  const int64_t size = element_bytes(dtype);
  if (std::memcmp(a, b, static_cast<size_t>(count * size)) == 0) return;
  for (int64_t i = 0; i < count; ++i, a += size, b += size) {
    if (std::memcmp(a, b, static_cast<size_t>(size)) == 0) continue;
    ++out.differ;
    const double by = std::fabs(number_at(dtype, a) - number_at(dtype, b));
    if (by > out.largest || std::isnan(by)) out.largest = by;
  }
}

class Comparison {
 public:
  Comparison(const Saved& first, const Saved& second)
      : a_(first), b_(second), in_a_(first.read()), in_b_(second.read()) {}

  void run() {
    differ("step", in_a_.step, in_b_.step);
    differ("seed", digits_of(in_a_.seed, 16), digits_of(in_b_.seed, 16));
    differ("with parameters", in_a_.with_params, in_b_.with_params);
    std::map<std::string, const ManifestParam*> others;
    for (const ManifestParam& p : in_b_.params) others[p.name] = &p;
    StateSources from_a(a_.folder, in_a_), from_b(b_.folder, in_b_);
    for (const ManifestParam& p : in_a_.params) {
      const auto found = others.find(p.name);
      if (found == others.end()) {
        note(cat("param ", in_quotes(p.name), ": is only in ", a_.path()));
        continue;
      }
      compare_param(p, *found->second);
      for (const auto& [word, dtype] : p.state) {
        const auto other = found->second->state.find(word);
        if (other != found->second->state.end() && other->second == dtype)
          compare_tensor(from_a, from_b, p, *found->second, kind_from_name(word));
      }
      others.erase(found);
    }
    for (const ManifestParam& p : in_b_.params)
      if (others.contains(p.name))
        note(cat("param ", in_quotes(p.name), ": is only in ", b_.path()));
    progress_.clear();
  }

  void print(bool json) const {
    if (json) {
      std::string list;
      for (const std::string& line : lines_) list += (list.empty() ? "" : ",") + json_text(line);
      fmt::print("{}\n", json_object({{"first", json_text(a_.path())},
                                      {"second", json_text(b_.path())},
                                      {"equal", cat(equal())},
                                      {"differences", "[" + list + "]"},
                                      {"tensors", tensors_.json()}}));
      return;
    }
    for (const std::string& line : lines_) fmt::print("{}\n", line);
    if (!lines_.empty()) fmt::print("\n");
    if (different_.rows() > 0) fmt::print("{}\n", different_.text());
    fmt::print("{} tensors of both, {} differ{}\n", tensors_.rows(), different_.rows(),
               equal() ? "; the checkpoints are equal" : "");
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
  void note(std::string line) { lines_.push_back(std::move(line)); }
  template <class T>
  bool differ(const std::string& what, const T& a, const T& b) {
    if (a != b) note(cat(what, ": ", a, " and ", b));
    return a != b;
  }

  void compare_param(const ManifestParam& a, const ManifestParam& b) {
    const std::string what = cat("param ", in_quotes(a.name), ": ");
    differ(what + "shape", a.shape, b.shape);
    differ(what + "dtype", a.dtype, b.dtype);
    differ(what + "role", a.role, b.role);
    differ(what + "momentum", a.momentum, b.momentum);
    differ(what + "its constant", a.momentum_constant, b.momentum_constant);
    differ(what + "updates", a.updates, b.updates);
    differ(what + "key of random rounding", a.key, b.key);
    differ(what + "NorMuon's neurons", a.neurons, b.neurons);
    const auto text = [&](const ManifestParam& p, const std::string& word) {
      const auto found = p.state.find(word);
      return found == p.state.end() ? std::string("none") : found->second;
    };
    // Whether parameters are saved is compared once, for the whole checkpoint.
    const std::string param = kind_name(StateTensor::kParam);
    const bool one_saved = a.state.contains(param) != b.state.contains(param);
    std::set<std::string> words;
    for (const auto* state : {&a.state, &b.state})
      for (const auto& [word, unused] : *state)
        if (word != param || !one_saved) words.insert(word);
    for (const std::string& word : words) differ(what + word, text(a, word), text(b, word));
    if (!a.state.contains(param) || !b.state.contains(param))
      differ(what + "hash of its values", digits_of(a.hash, 16), digits_of(b.hash, 16));
    compare_groups(a, b);
  }

  /// Compares each pair of groups once.
  void compare_groups(const ManifestParam& a, const ManifestParam& b) {
    if (!seen_.insert({a.group, b.group}).second) return;
    const auto& one = in_a_.groups[static_cast<size_t>(a.group)];
    const auto& other = in_b_.groups[static_cast<size_t>(b.group)];
    std::set<std::string> names;
    for (const auto* group : {&one, &other})
      for (const auto& [name, unused] : *group) names.insert(name);
    const auto text = [](const std::map<std::string, std::string>& group, const std::string& name) {
      const auto found = group.find(name);
      return found == group.end() ? std::string("none") : found->second;
    };
    for (const std::string& name : names)
      differ(cat("group of param ", in_quotes(a.name), ": ", name), text(one, name),
             text(other, name));
  }

  void compare_tensor(StateSources& from_a, StateSources& from_b, const ManifestParam& a,
                      const ManifestParam& b, int32_t kind) {
    const std::string what = tensor_text(a.name, kind);
    progress_.show("diff: " + what);
    Distance distance;
    distance.elements = from_a.numel(a.name, kind);
    if (differ(what + ": elements", distance.elements, from_b.numel(b.name, kind))) return;
    const std::string& dtype = dtype_of(a, kind);
    const std::vector<unsigned char> whole = whole_tensor(from_a, a, kind);
    from_b.read(b.name, kind, whole_extent(distance.elements), what,
                [&](int64_t, int64_t element, std::span<const unsigned char> bytes) {
                  const int64_t size = element_bytes(dtype);
                  compare(distance, dtype, whole.data() + element * size, bytes.data(),
                          std::ssize(bytes) / size);
                });
    add(tensors_, a, kind, distance);
    if (distance.differ > 0) add(different_, a, kind, distance);
  }
  static void add(Table& table, const ManifestParam& p, int32_t kind, const Distance& d) {
    table.add({cell::word(p.name), cell::word(kind_name(kind)), cell::grouped(d.elements),
               cell::grouped(d.differ), cell::scientific(d.largest)});
  }

  const Saved &a_, &b_;
  const Manifest in_a_, in_b_;
  std::set<std::pair<int64_t, int64_t>> seen_;
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
