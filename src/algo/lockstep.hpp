#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "backend/ops.hpp"

namespace muonrt {

/// Independent products of an iteration, and the ops that follow them before the next step of the
/// iteration. Either all of these products need the symmetric kernel, or none does.
struct IterationStep {
  std::vector<Product> products;
  std::vector<std::function<void()>> then;
};

/// The products that consecutive calls of multiply() compute for several iterations, and the ops
/// that follow these calls.
struct ProductSequence {
  std::vector<Product> products;
  std::vector<size_t> ends;  // call i has the products [ends[i - 1], ends[i])
  std::vector<std::function<void()>> then;
};

/// Merges the steps of several iterations. The iterations must not share memory. Each iteration
/// keeps the order of its steps. Steps with other products run first, until the next step of every
/// unfinished iteration is a symmetric product; all these symmetric products then become one call.
/// Thus the longest iteration determines the number of calls with symmetric products, whatever the
/// forms and lengths of the others.
std::vector<ProductSequence> in_lockstep(std::span<const std::vector<IterationStep>> iterations);

/// Enqueues the sequences, which must remain valid until their work has run. Does not allocate
/// memory.
void run(Ops& ops, Stream& stream, std::span<const ProductSequence> sequences);

}  // namespace muonrt
