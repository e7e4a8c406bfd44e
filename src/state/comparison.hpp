#pragma once

#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "state/checkpoint.hpp"
#include "state/manifest.hpp"

namespace muonrt {

/// Returns the name of a parameter in quotation marks, because the name may come from a file.
inline std::string name_of(const ManifestParam& param) {
  return cat("param ", in_quotes(param.name));
}

/// Compares a saved manifest with the manifest of the optimizer.
class Comparison {
 public:
  Comparison(const Manifest& saved, const Manifest& mine, const LoadSettings& settings);

  /// Throws INVALID_ARGUMENT, with a list of the differences, if the manifests differ.
  void require_equal(const std::string& what) const;
  /// Returns the notes for the result of the load, one per line.
  std::string notes() const {
    std::string out;
    for (const std::string& note : notes_) out += note + "\n";
    return out;
  }
  /// Returns the saved parameter with this name, or null.
  const ManifestParam* saved(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

 private:
  void missing(std::string problem, const std::string& partial) {
    if (settings_.partial) {
      notes_.push_back(cat(problem, ": ", partial));
    } else {
      problems_.push_back(std::move(problem));
    }
  }
  void compare(const ManifestParam& saved, const ManifestParam& mine);
  void compare_groups(const ManifestParam& saved, const ManifestParam& mine);

  const Manifest &saved_, &mine_;
  const LoadSettings& settings_;
  std::unordered_map<std::string_view, const ManifestParam*> by_name_;
  std::set<std::pair<int64_t, int64_t>> seen_;
  std::vector<std::string> problems_, notes_;
};

}  // namespace muonrt
