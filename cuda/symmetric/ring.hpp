#pragma once

#include <cstdint>

#include "backend/update_rules.hpp"

// Defines the ring of stages between the copies and the products of a thread block, and the
// barriers of a stage. This file is plain C++, because both the kernel and the kernel's model in
// tests/cuda use it.
//
// A fill is one use of a stage: fill f uses stage f % kRingStages. A phase of `full` ends when all
// announced bytes have arrived and producers have arrived twice. A phase of `empty` ends when both
// consumers of the block have read the stage. A phase of `peer_empty` ends when both consumers of
// the other block of the cluster have read the stage.
//
// `peer_empty` counts only fills of pairs, which come first in both blocks and have the same
// numbers there. A copy into both blocks waits for `empty` and `peer_empty`. Every fill of a pair
// needs arrivals from the producers of both blocks. For A and B, both producers copy bytes. For D,
// the producer of the other block copies nothing and only arrives at the barrier. If one block
// could fill a stage by itself, two phases of `peer_empty` might end before the producer of the
// other block checks the barrier.

namespace muonrt::cuda {

constexpr int kRingStages = 4;
constexpr int kConsumers = 2;  // warpgroups of a block
// A stage is released only when the products of the next stage are in flight.
static_assert(kRingStages >= 2, "a ring of one stage would deadlock");

// The kernels use the default of `ring`. The model also uses other values to show that a ring of
// one stage deadlocks.
MUONRT_HOST_DEVICE constexpr int stage_of(int fill, int ring = kRingStages) { return fill % ring; }
/// Returns the parity of the phase of `full` that ends with this fill.
MUONRT_HOST_DEVICE constexpr uint32_t parity_of(int fill, int ring = kRingStages) {
  return static_cast<uint32_t>(fill / ring) & 1u;
}
/// Returns whether a fill must wait until the previous fill of its stage has been read.
/// parity_before returns the parity of that previous fill.
MUONRT_HOST_DEVICE constexpr bool waits(int fill, int ring = kRingStages) { return fill >= ring; }
MUONRT_HOST_DEVICE constexpr uint32_t parity_before(int fill, int ring = kRingStages) {
  return parity_of(fill - ring, ring);
}

}  // namespace muonrt::cuda
