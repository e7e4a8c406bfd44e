#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muonrt::tool {

/// The work of the ranks in a step, measured or modelled, on one clock for all ranks.
struct Timeline {
  /// The kind of work determines the lane: products and local passes run on the compute stream,
  /// exchanges and votes on the exchange stream.
  enum class Work : int32_t { kProducts, kLocal, kExchange };
  struct Span {
    int32_t rank = 0;
    Work work = Work::kLocal;
    double start = 0, end = 0;  // seconds
    std::string name;           // "gather exchange"
    int32_t chunk = -1;         // -1: the work of the whole step
    int64_t bytes = 0;          // for an exchange: bytes sent to other ranks
  };

  std::string title;
  std::string note;  // printed after the shares, below the title; may be empty
  std::vector<Span> spans;

  /// Returns the duration of the step from the first to the last span, and the mean shares of its
  /// parts over all ranks: "step 12.3 ms: products 78%, local passes 7%, waiting 15%".
  std::string shares() const;
  /// Draws a picture with a lane for each stream of a rank, a colour for each chunk, and time in
  /// milliseconds. If there are more than 8 ranks, it shows 8 evenly spread ranks. Throws
  /// std::runtime_error if there are no spans.
  std::string svg() const;
};

/// Returns the spans of the last step in a Chrome trace that muonrt_optimizer_get_trace() wrote.
/// The traces of several ranks and steps may be joined.
std::vector<Timeline::Span> last_step(const std::string& chrome_trace);

}  // namespace muonrt::tool
