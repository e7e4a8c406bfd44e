#pragma once

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

/// Products of several iterations that `multiply` runs in one call, and the ops that follow them.
struct GroupedProducts {
  std::vector<Product> products;
  std::vector<std::function<void()>> then;
};

/// Merges the steps of several iterations that share no memory; each iteration keeps its order.
/// Steps with other products run first, until the next step of every unfinished iteration is a
/// symmetric product. These products become one call. So there are as many calls with symmetric
/// products as the longest iteration has, for any forms and lengths of the others.
std::vector<GroupedProducts> in_lockstep(std::span<const std::vector<IterationStep>> iterations);

/// Enqueues the calls; does not allocate.
void run(Ops& ops, Stream& stream, std::span<const GroupedProducts> calls);

}  // namespace muonrt
