#include <algorithm>

#include "base/error.hpp"
#include "optimizer/settings/settings.hpp"

namespace muonrt {

void take_grad_layout(ParamSettings& p, Layout layout) {
  MUONRT_REQUIRE(p.layout.partial_dims().empty(), Status::kInvalidArgument, "param '", p.name,
                 "': its layout holds partial sums (", p.layout.describe(),
                 "), but grad_layout is set, too; declare partial gradients only in grad_layout");
  p.grad_layout.reset();
  if (layout == p.layout) return;
  const std::vector<int>& replicas = p.layout.replica_dims();
  const std::vector<int>& partial = layout.partial_dims();
  const bool same_mesh = layout.mesh() == p.layout.mesh();
  if (same_mesh &&
      std::includes(replicas.begin(), replicas.end(), partial.begin(), partial.end())) {
    const Layout summed = p.layout.with_partial(partial);
    if (summed == layout) {
      p.layout = summed;
      return;
    }
  }
  p.grad_layout = std::move(layout);
}

}  // namespace muonrt
