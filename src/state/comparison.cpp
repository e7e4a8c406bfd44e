#include "state/comparison.hpp"

#include <algorithm>
#include <unordered_set>

#include "state/conversions.hpp"

namespace muonrt {

namespace {

constexpr size_t kMaxShown = 20;  // maximum number of differences in an error message

}  // namespace

Comparison::Comparison(const Manifest& saved, const Manifest& mine, const LoadSettings& settings)
    : saved_(saved), mine_(mine), settings_(settings) {
  by_name_.reserve(saved.params.size());
  for (const ManifestParam& p : saved.params) by_name_[p.name] = &p;
  std::unordered_set<std::string_view> known(2 * mine.params.size());
  for (const ManifestParam& p : mine.params) {
    known.insert(p.name);
    const auto found = by_name_.find(p.name);
    if (found == by_name_.end()) {
      missing(cat(name_of(p), " is not in the checkpoint"), "its state is initialized");
    } else {
      compare(*found->second, p);
    }
  }
  for (const ManifestParam& p : saved.params)
    if (!known.contains(p.name))
      missing(cat(name_of(p), " is not in the optimizer"), "it is ignored");
}

void Comparison::require_equal(const std::string& what) const {
  if (problems_.empty()) return;
  std::string text;
  for (size_t i = 0; i < std::min(kMaxShown, problems_.size()); ++i)
    text += (i ? "; " : "") + problems_[i];
  if (problems_.size() > kMaxShown) text += cat("; and ", problems_.size() - kMaxShown, " more");
  throw Error(kInvalidArg, cat(what, ": the checkpoint belongs to another model: ", text));
}

void Comparison::compare(const ManifestParam& saved, const ManifestParam& mine) {
  const auto differ = [&](const char* what, const auto& there, const auto& here) {
    if (there != here)
      problems_.push_back(
          cat(name_of(mine), ": its ", what, " is ", here, ", but was ", there, " when saved"));
  };
  differ("shape", saved.shape, mine.shape);
  differ("dtype", saved.dtype, mine.dtype);
  differ("role", saved.role, mine.role);
  if (const auto param = saved.state.find(kind_name(StateTensor::kParam));
      param != saved.state.end())
    differ("dtype of param", param->second, mine.dtype == name_of(DType::kF32) ? "F32" : "BF16");
  for (const auto& [kind, dtype] : mine.state) {
    const auto found = saved.state.find(kind);
    const std::string other = kind_name(other_form(kind_from_name(kind)));
    if (found == saved.state.end() && saved.state.contains(other)) {
      differ(cat("dtype of ", other).c_str(), saved.state.at(other),
             kind_from_name(other) == static_cast<int32_t>(StateKind::kMaster) ? "F32" : "U16");
      notes_.push_back(cat(name_of(mine), ": its ", other, " becomes ", kind));
    } else if (found == saved.state.end()) {
      missing(cat(name_of(mine), ": its ", kind, " is not in the checkpoint"), "it is initialized");
    } else {
      differ(cat("dtype of ", kind).c_str(), found->second, dtype);
    }
  }
  for (const auto& [kind, dtype] : saved.state)
    if (!mine.state.contains(kind) && kind != kind_name(StateTensor::kParam) &&
        !mine.state.contains(kind_name(other_form(kind_from_name(kind)))))
      missing(cat(name_of(mine), ": it has no ", kind, " in the optimizer"), "it is ignored");
  if (!saved.neurons.empty() && !mine.neurons.empty() && saved.neurons != mine.neurons)
    problems_.push_back(
        cat(name_of(mine), ": its NorMuon neurons differ, because normuon_axis or parts differ"));
  if (saved.momentum != mine.momentum)
    notes_.push_back(
        cat(name_of(mine), ": its momentum was ", saved.momentum, " and becomes ", mine.momentum));
  compare_groups(saved, mine);
}

void Comparison::compare_groups(const ManifestParam& saved, const ManifestParam& mine) {
  if (!seen_.insert({saved.group, mine.group}).second) return;
  const auto& there = saved_.groups[static_cast<size_t>(saved.group)];
  for (const auto& [name, here] : mine_.groups[static_cast<size_t>(mine.group)]) {
    const auto found = there.find(name);
    if (found != there.end() && found->second != here)
      notes_.push_back(cat("group of ", name_of(mine), ": ", name, " is ", here, ", and was ",
                           found->second, " when it was saved"));
  }
}

}  // namespace muonrt
