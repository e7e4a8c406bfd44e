#include <algorithm>

#include "base/error.hpp"
#include "optimizer/settings/settings.hpp"
#include "plan/owners/holder_table.hpp"

namespace muonrt {

namespace {

std::vector<int32_t> holders_of_param(const Layout& layout, int world) {
  std::vector<int32_t> out;
  for (int32_t rank = 0; rank < world; ++rank) {
    if (layout.local_numel(rank) > 0) out.push_back(rank);
  }
  return out;
}

/// Checks that each owner is a rank. If there are multiple owners, the error names the first matrix
/// whose owner is not a rank.
void require_ranks(const std::string& who, const std::vector<int32_t>& owners, int world) {
  for (size_t i = 0; i < owners.size(); ++i) {
    MUONRT_REQUIRE(
        owners[i] >= 0 && owners[i]<world, Status::kInvalidArgument, who,
                                    ": assign returned owner ", owners[i], owners.size()> 1
            ? cat(" for matrix ", i)
            : std::string(),
        ", but must be between 0 and ", world - 1, "; set a rank for every Muon parameter");
  }
}

}  // namespace

std::vector<std::vector<int32_t>> holders_of_matrices(const ParamSettings& p, int world) {
  std::vector<std::vector<int32_t>> out(static_cast<size_t>(stack_size(p)));
  if (p.view != View::kStack) return {holders_of_param(p.layout, world)};
  ParamSpec spec;
  spec.layout = p.layout;
  spec.stack = true;
  const HolderTable table({spec}, world);
  for (size_t i = 0; i < out.size(); ++i) {
    for (const Holder& holder : table.group(0, static_cast<int64_t>(i)).members)
      out[i].push_back(holder.rank);
    std::ranges::sort(out[i]);
  }
  return out;
}

void assign_owners(OptimizerSettings& settings, int world) {
  if (!settings.assign_owner) return;
  for (size_t i = 0; i < settings.params.size(); ++i) {
    ParamSettings& p = settings.params[i];
    if (settings.groups[static_cast<size_t>(p.group)].role != Role::kMuon) continue;
    const std::string who = cat("param '", p.name, "'");
    MUONRT_REQUIRE(p.owner < 0 && p.owners.empty(), Status::kInvalidArgument, who, ": owner",
                   p.owners.empty() ? cat(" is ", p.owner) : cat("s is ", p.owners),
                   ", and there is an assign function, too; use one of them");
    std::vector<int32_t> owners(static_cast<size_t>(stack_size(p)), -1);
    const int code = settings.assign_owner(static_cast<int64_t>(i), p,
                                           holders_of_param(p.layout, world), owners.data());
    MUONRT_REQUIRE(code == 0, Status::kCallback, who, ": assign returned ", code,
                   " instead of 0, so nothing was created; return 0 after you have set the owner");
    const auto is_set = [](int32_t owner) { return owner != -1; };
    if (std::none_of(owners.begin() + 1, owners.end(), is_set)) owners.resize(1);
    require_ranks(who, owners, world);
    if (owners.size() > 1)
      p.owners = std::move(owners);
    else
      p.owner = owners[0];
  }
}

}  // namespace muonrt
