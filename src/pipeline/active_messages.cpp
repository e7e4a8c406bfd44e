#include "pipeline/active_messages.hpp"

#include <algorithm>

namespace muonrt {

ActiveMessages::ActiveMessages(std::vector<Region> regions, std::vector<ParamBytes> contents)
    : regions_(std::move(regions)), contents_(std::move(contents)) {
  const auto by_begin = [](const ParamBytes& a, const ParamBytes& b) { return a.begin < b.begin; };
  std::sort(contents_.begin(), contents_.end(), by_begin);
  for (const Region& r : regions_) {
    const auto first =
        std::lower_bound(contents_.begin(), contents_.end(), ParamBytes{0, r.offset, 0}, by_begin);
    const auto last =
        std::lower_bound(first, contents_.end(), ParamBytes{0, r.offset + r.bytes, 0}, by_begin);
    ranges_.emplace_back(first - contents_.begin(), last - first);
  }
}

}  // namespace muonrt
