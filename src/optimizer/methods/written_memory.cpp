#include "optimizer/methods/written_memory.hpp"

#include <algorithm>

namespace muonrt {

WrittenMemory::WrittenMemory(const OptimizerSettings& settings, const ParamView* params,
                             const State& state) {
  const auto add = [&](const void* data, int64_t numel, DType dtype, const char* what, size_t i) {
    if (data && numel > 0)
      list_.push_back(interval_of(data, numel, dtype, what, settings.params[i].name));
  };
  for (size_t i = 0; i < settings.params.size(); ++i)
    add(params[i].param, params[i].numel, params[i].param_dtype, "data", i);
  for (const StateEntry& entry : state.entries())
    add(entry.data, entry.numel, entry.dtype, name_of(entry.kind),
        static_cast<size_t>(entry.param));
  std::sort(list_.begin(), list_.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
}

void WrittenMemory::move(const Interval& from, const Interval& to) {
  const auto same = [&](const Interval& other) {
    return other.begin == from.begin && other.end == from.end;
  };
  const auto at = std::find_if(list_.begin(), list_.end(), same);
  if (at == list_.end()) return;  // This rank holds no element.
  for (const Interval& other : list_)
    if (&other != &*at) require_apart(to, other);
  list_.erase(at);
  const auto next =
      std::upper_bound(list_.begin(), list_.end(), to,
                       [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  list_.insert(next, to);
}

// The intervals in the list do not overlap, so only the first one that ends after the beginning of
// `given` must be compared.
void WrittenMemory::require_apart_from(const Interval& given) const {
  const auto next =
      std::upper_bound(list_.begin(), list_.end(), given.begin,
                       [](uintptr_t begin, const Interval& other) { return begin < other.end; });
  if (next != list_.end()) require_apart(given, *next);
}

}  // namespace muonrt
