#include "pipeline/schedule.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace muonrt {

const char* stage_name(Stage stage) {
  switch (stage) {
    case Stage::kScan:
      return "scan";
    case Stage::kGather:
      return "gather";
    case Stage::kOrthogonalize:
      return "orthogonalize";
    case Stage::kVote:
      return "vote";
    case Stage::kCommit:
      return "commit";
    case Stage::kAdamW:
      return "adamw";
    case Stage::kConfirm:
      return "confirm";
  }
  return "unknown";
}

namespace {

// Up to `window` gathers are enqueued before the products that use them. The scan comes after the
// first gathers: the compute stream runs it while it would otherwise wait for their exchanges.
std::vector<Action> atomic_order(int32_t chunks, int32_t window) {
  std::vector<Action> order;
  for (int32_t i = 0; i < std::min(window, chunks); ++i) order.push_back({Stage::kGather, i});
  order.push_back({Stage::kScan, -1});
  for (int32_t i = 0; i < chunks; ++i) {
    order.push_back({Stage::kOrthogonalize, i});
    if (i + window < chunks) order.push_back({Stage::kGather, i + window});
  }
  order.push_back({Stage::kVote, -1});
  for (int32_t i = 0; i < chunks; ++i) order.push_back({Stage::kCommit, i});
  order.push_back({Stage::kAdamW, -1});
  return order;
}

// A chunk commits after the orthogonalization of the next chunk, so its update has time to arrive.
// If the window is 1, it commits immediately, because the next chunk uses the same buffers. AdamW
// comes after the first gathers: the compute stream runs it while it would otherwise wait for their
// exchanges.
std::vector<Action> eager_order(int32_t chunks, int32_t window) {
  const int32_t delay = window > 1 ? 1 : 0;
  std::vector<Action> order = {{Stage::kScan, -1}, {Stage::kVote, -1}};
  for (int32_t i = 0; i < std::min(window, chunks); ++i) order.push_back({Stage::kGather, i});
  order.push_back({Stage::kAdamW, -1});
  for (int32_t i = 0; i < chunks; ++i) {
    order.push_back({Stage::kOrthogonalize, i});
    if (i >= delay) order.push_back({Stage::kCommit, i - delay});
    if (i + window < chunks) order.push_back({Stage::kGather, i + window});
  }
  for (int32_t i = std::max(0, chunks - delay); i < chunks; ++i)
    order.push_back({Stage::kCommit, i});
  order.push_back({Stage::kConfirm, -1});
  return order;
}

}  // namespace

std::vector<Action> schedule(int32_t chunks, int window, CommitMode commit) {
  return commit == CommitMode::kAtomic ? atomic_order(chunks, window) : eager_order(chunks, window);
}

std::string to_text(const std::vector<Action>& actions) {
  std::string out;
  for (const Action& action : actions) {
    if (!out.empty()) out += ' ';
    out += stage_name(action.stage);
    if (action.chunk >= 0) out += cat("(", action.chunk, ")");
  }
  return out;
}

}  // namespace muonrt
