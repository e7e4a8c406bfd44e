#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muonrt::tool {

/// What ranks do in a step, measured or modelled, on one clock for all ranks.
struct Timeline {
  /// The lane follows from the work: products and local passes run on the compute stream, exchanges
  /// and votes on the exchange stream.
  enum class Work : int32_t { kProducts, kLocal, kExchange };
  struct Span {
    int32_t rank = 0;
    Work work = Work::kLocal;
    double start = 0, end = 0;  // seconds
    std::string name;           // "gather exchange"
    int32_t chunk = -1;         // -1: of the whole step
    int64_t bytes = 0;          // an exchange: sent to other ranks
  };

  std::string title;
  std::string note;  // follows the shares in the line below the title; may be empty
  std::vector<Span> spans;

  /// The step from its first to its last span, with the mean over ranks of its parts: "step
  /// 12.3 ms: products 78%, local passes 7%, waiting 15%".
  std::string shares() const;
  /// A picture: a lane for each stream of a rank, a colour for each chunk, time in milliseconds.
  /// If there are more than 8 ranks, it shows 8 of them, evenly spread.
  /// Throws std::runtime_error if there are no spans.
  std::string svg() const;
};

/// The spans of the last step in a Chrome trace that muonrt_optimizer_get_trace() wrote; the traces
/// of several ranks and steps may be joined.
std::vector<Timeline::Span> last_step(const std::string& chrome_trace);

}  // namespace muonrt::tool
