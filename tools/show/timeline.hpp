#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muonrt::tool {

/// The work of the ranks in a step, measured or modelled, on one clock for all ranks.
struct Timeline {
  /// The kind of work, which determines the lane: products and local passes run on the compute
  /// stream, and exchanges and votes run on the exchange stream.
  enum class Work : int32_t { kProducts, kLocal, kExchange };
  struct Span {
    int32_t rank = 0;
    Work work = Work::kLocal;
    double start = 0, end = 0;  // seconds
    std::string name;           // such as "gather exchange"
    int32_t chunk = -1;         // -1: work for the whole step
    int64_t bytes = 0;          // for an exchange: bytes sent to other ranks
  };

  std::string title;
  std::string note;  // printed after the shares, below the title; may be empty
  std::vector<Span> spans;

  /// Returns a text such as "step 12.3 ms: products 78%, local passes 7%, waiting 15%". The
  /// duration covers the first to the last span, and the shares are averaged over all ranks.
  std::string shares() const;
  /// Draws a picture with a lane for each stream of a rank, a color for each chunk, and the time in
  /// milliseconds. If there are more than 8 ranks, shows 8 evenly spread ranks. If there are no
  /// spans, throws std::runtime_error.
  std::string svg() const;
};

/// Returns the spans of the last step in a Chrome trace in the format of
/// muonrt_optimizer_get_trace(). The trace may contain multiple ranks and steps.
std::vector<Timeline::Span> last_step(const std::string& chrome_trace);

}  // namespace muonrt::tool
