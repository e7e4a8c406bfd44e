#include "pipeline/trace.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace muonrt {

std::string chrome_trace(const std::vector<Span>& spans, int rank) {
  std::vector<Span> ran;
  std::copy_if(spans.begin(), spans.end(), std::back_inserter(ran),
               [](const Span& s) { return s.end > 0; });
  std::sort(ran.begin(), ran.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  const int64_t origin = ran.empty() ? 0 : ran.front().begin;
  std::string out = "[";
  const auto name_thread = [&](int thread, const char* name) {
    out += cat("{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": ", rank, ", \"tid\": ", thread,
               ", \"args\": {\"name\": \"", name, "\"}}");
  };
  name_thread(0, "compute");
  out += ",\n";
  name_thread(1, "comm");
  for (const Span& s : ran) {
    const std::string name = s.slot < 0 ? s.name : cat(s.name, " ", s.slot);
    out += cat(",\n{\"name\": ", json_quote(name), ", \"ph\": \"X\", \"pid\": ", rank,
               ", \"tid\": ", s.on_comm() ? 1 : 0,
               ", \"ts\": ", fixed(static_cast<double>(s.begin - origin) * 1e-3, 3),
               ", \"dur\": ", fixed(static_cast<double>(s.end - s.begin) * 1e-3, 3), "}");
  }
  return out + "]\n";
}

}  // namespace muonrt
