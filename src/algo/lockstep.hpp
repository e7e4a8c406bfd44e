#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "backend/ops.hpp"

namespace muonrt {

/// Products of an iteration that do not depend on each other, of which all or none need the
/// symmetric kernel, and the ops that follow before the next step of the iteration.
struct IterationStep {
  std::vector<Product> products;
  std::vector<std::function<void()>> then;
};

/// Products of several iterations, in calls of multiply() that no other op interrupts, and the ops
/// that follow them.
struct ProductSequence {
  std::vector<Product> products;
  std::vector<size_t> ends;  // call i has the products [ends[i - 1], ends[i])
  std::vector<std::function<void()>> then;
};

/// Merges the steps of several iterations, which must not share memory. The order of the steps in
/// each iteration is kept. Steps with other products run first, until the next step of every
/// unfinished iteration is a symmetric product. These symmetric products then become one call.
/// Therefore the number of calls with symmetric products depends only on the longest iteration, and
/// not on the forms and lengths of the others.
std::vector<ProductSequence> in_lockstep(std::span<const std::vector<IterationStep>> iterations);

/// Enqueues the sequences, which must stay valid until their work has run. Does not allocate
/// memory.
void run(Ops& ops, Stream& stream, std::span<const ProductSequence> sequences);

}  // namespace muonrt
