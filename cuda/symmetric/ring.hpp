#pragma once

#include <cstdint>

#include "backend/update_rules.hpp"

// The ring of stages between the copies and the products of a block, and who waits for what. Plain
// C++: the kernel and the model of it in tests/cuda use these functions.
//
// Fill f goes to stage f % kRingStages. `full` ends a phase when its bytes have come and a producer
// has arrived twice; `empty` when both consumers of the block have read it; `peer_empty` when both
// consumers of the other block of the cluster have. The last counts fills of pairs alone, which
// come first in both blocks and have the same numbers there: a copy into both blocks waits for
// both. Every fill of a pair needs both producers: operands take bytes from both, at D's the second
// arrival is the other block's. A block that could fill a stage alone might end two phases of
// `peer_empty` before the other one's producer looks.

namespace muonrt::cuda {

constexpr int kRingStages = 4;
constexpr int kConsumers = 2;  // warpgroups of a block
// A stage is given back when the products of the next are under way.
static_assert(kRingStages >= 2, "a ring of one stage stops");

// Another `ring` than the kernels' is for the model, which has to see a ring of one stage stop.
MUONRT_HOST_DEVICE constexpr int stage_of(int fill, int ring = kRingStages) { return fill % ring; }
/// Parity of the phase of `full` that ends with this fill.
MUONRT_HOST_DEVICE constexpr uint32_t parity_of(int fill, int ring = kRingStages) {
  return static_cast<uint32_t>(fill / ring) & 1u;
}
/// Whether a fill has to wait for a former one of its stage, whose parity this is then.
MUONRT_HOST_DEVICE constexpr bool waits(int fill, int ring = kRingStages) { return fill >= ring; }
MUONRT_HOST_DEVICE constexpr uint32_t parity_before(int fill, int ring = kRingStages) {
  return parity_of(fill - ring, ring);
}

}  // namespace muonrt::cuda
