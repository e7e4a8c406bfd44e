#include <algorithm>

#include "base/error.hpp"
#include "optimizer/settings/settings.hpp"

namespace muonrt {

namespace {

std::vector<int32_t> holders_of_param(const Layout& layout, int world) {
  std::vector<int32_t> out;
  for (int32_t rank = 0; rank < world; ++rank) {
    if (layout.local_numel(rank) > 0) out.push_back(rank);
  }
  return out;
}

}  // namespace

void assign_owners(OptimizerSettings& settings, int world) {
  if (!settings.assign_owner) return;
  for (size_t i = 0; i < settings.params.size(); ++i) {
    ParamSettings& p = settings.params[i];
    if (settings.groups[static_cast<size_t>(p.group)].role != Role::kMuon) continue;
    const std::string who = cat("param '", p.name, "'");
    MUONRT_REQUIRE(p.owner < 0, Status::kInvalidArgument, who, ": owner is ", p.owner,
                   ", and there is an assign function, too; use one of them");
    int32_t owner = -1;
    const int code = settings.assign_owner(static_cast<int64_t>(i), p,
                                           holders_of_param(p.layout, world), &owner);
    MUONRT_REQUIRE(code == 0, Status::kCallback, who, ": assign returned ", code,
                   " (0 is success); nothing was created");
    MUONRT_REQUIRE(owner >= 0 && owner < world, Status::kInvalidArgument, who,
                   ": assign gave owner ", owner, " (a rank, 0 to ", world - 1,
                   "); name one for every Muon parameter");
    p.owner = owner;
  }
}

}  // namespace muonrt
