#include "pipeline/trace.hpp"

#include <algorithm>

#include "base/json.hpp"
#include "base/text.hpp"

namespace muonrt {

namespace {

/// Returns "name", or for example "name[3]" if the parameter has multiple matrices.
std::string name_of(const Plan& plan, const OwnedMatrix& owned) {
  const auto& matrices = plan.matrices();
  const Matrix& m = matrices[static_cast<size_t>(owned.matrix)];
  const ParamSpec& param = plan.problem().params[static_cast<size_t>(m.param)];
  const bool several = param.stack || parts_of(param) > 1;
  return several ? cat(param.name, "[", m.index, "]") : param.name;
}

void write_args(JsonWriter& out, const Pipeline& pipeline, const Span& span, int64_t step) {
  out.field("step", step);
  if (span.chunk >= 0) out.field("chunk", span.chunk);
  if (span.kind == SpanKind::kExchange) {
    out.field("bytes_sent", span.bytes_sent);
    out.field("bytes_received", span.bytes_received);
  }
  if (span.owned == 0) return;
  const auto& chunks = pipeline.rank_chunks();
  const auto chunk = std::find_if(chunks.begin(), chunks.end(),
                                  [&](const RankChunk& c) { return c.index == span.chunk; });
  out.key("matrices");
  out.list([&] {
    for (int32_t i = span.first_owned; i < span.first_owned + span.owned; ++i)
      out.value(name_of(pipeline.plan(), chunk->owned[static_cast<size_t>(i)]));
  });
}

}  // namespace

std::string chrome_trace(const Pipeline& pipeline, int rank, int64_t step, int64_t clock_offset) {
  std::vector<Span> ran = pipeline.spans();
  std::erase_if(ran, [](const Span& s) { return s.end == 0; });
  std::sort(ran.begin(), ran.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
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
  const auto label = [&](const char* kind, int thread, const std::string& name) {
    event(kind, "M", thread, [&] {
      out.key("args");
      out.object([&] { out.field("name", name); });
    });
  };
  out.list([&] {
    label("process_name", 0, cat("rank ", rank));
    label("thread_name", 0, "compute");
    label("thread_name", 1, "exchange");
    for (const Span& s : ran) {
      event(s.chunk < 0 ? s.name : cat(s.name, " ", s.chunk), "X", s.on_comm() ? 1 : 0, [&] {
        out.field("ts", static_cast<double>(s.begin + clock_offset) / 1e3);
        out.field("dur", static_cast<double>(s.end - s.begin) / 1e3);
        out.key("args");
        out.object([&] { write_args(out, pipeline, s, step); });
      });
    }
  });
  return out.take() + '\n';
}

}  // namespace muonrt
