#pragma once

#include <functional>
#include <span>
#include <vector>

#include "backend/ops.hpp"

namespace muonrt {

/// A product of an iteration, and what else is enqueued behind it before the iteration's next.
struct IterationStep {
  Product product;
  std::vector<std::function<void()>> then;
};

/// Products of several iterations that are given to `multiply` together, and what comes behind.
struct GroupedProducts {
  std::vector<Product> products;
  std::vector<std::function<void()>> then;
};

/// The rounds of several iterations that share no memory, each in its order. What is not a
/// symmetric product goes ahead, until every iteration that is not at its end stands before one;
/// those are then given to `multiply` together. So there are as many calls with symmetric products
/// as the longest iteration has, whatever the others' forms and lengths.
std::vector<GroupedProducts> in_lockstep(std::span<const std::vector<IterationStep>> iterations);

/// Enqueues calls; takes no memory.
void run(Ops& ops, Stream& stream, std::span<const GroupedProducts> calls);

}  // namespace muonrt
