#include "pipeline/trace.hpp"

#include <algorithm>

#include "base/json.hpp"
#include "base/text.hpp"

namespace muonrt {

std::string chrome_trace(const std::vector<Span>& spans, int rank) {
  std::vector<Span> ran;
  std::copy_if(spans.begin(), spans.end(), std::back_inserter(ran),
               [](const Span& s) { return s.end > 0; });
  std::sort(ran.begin(), ran.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  const int64_t origin = ran.empty() ? 0 : ran.front().begin;
  JsonWriter out;
  const auto event = [&](std::string_view name, const char* kind, int thread, const auto& more) {
    out.object([&] {
      out.field("name", name);
      out.field("ph", kind);
      out.field("pid", rank);
      out.field("tid", thread);
      more();
    });
  };
  const auto name_thread = [&](int thread, const char* name) {
    event("thread_name", "M", thread, [&] {
      out.key("args");
      out.object([&] { out.field("name", name); });
    });
  };
  out.list([&] {
    name_thread(0, "compute");
    name_thread(1, "comm");
    for (const Span& s : ran) {
      event(s.chunk < 0 ? s.name : cat(s.name, " ", s.chunk), "X", s.on_comm() ? 1 : 0, [&] {
        out.field("ts", static_cast<double>(s.begin - origin) / 1e3);
        out.field("dur", static_cast<double>(s.end - s.begin) / 1e3);
      });
    }
  });
  return out.take() + '\n';
}

}  // namespace muonrt
