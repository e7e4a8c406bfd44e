#include "state/sources.hpp"

#include <algorithm>
#include <numeric>

#include "base/checked.hpp"

namespace muonrt {

namespace {

constexpr int64_t kStretch = 1 << 18;  // elements that are given out at once

int64_t product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, checked_mul);
}

}  // namespace

StateSources::StateSources(const std::string& folder, const Manifest& manifest) {
  std::map<std::string, const ManifestParam*> params;
  for (const ManifestParam& p : manifest.params) params[p.name] = &p;
  for (const FileRecord& record : manifest.files) {
    files_.push_back(std::make_unique<PieceFile>(folder, record));
    PieceFile& file = *files_.back();
    for (const FilePiece& piece : file.pieces()) {
      const std::string where = cat(file.path(), ": tensor ", in_quotes(piece.entry->name));
      const auto param = params.find(piece.param);
      const auto* const state = param == params.end() ? nullptr : &param->second->state;
      const auto dtype = state ? state->find(word_of(piece.kind)) : decltype(state->end()){};
      MUONRT_REQUIRE(state && dtype != state->end() && dtype->second == piece.entry->dtype,
                     Status::kCorrupt, where, ": the manifest has no such state, or in another ",
                     "dtype; the checkpoint is damaged, load another");
      const bool lines = piece.kind == static_cast<int32_t>(StateKind::kNormuon);
      const int64_t numel = product(lines ? piece.extent.shape : param->second->shape);
      check_extent(piece.extent, numel, where);
      sources_[{piece.param, piece.kind}].push_back({&file, &piece});
    }
  }
}

void StateSources::forget_checks() {
  for (const auto& file : files_) file->forget_checks();
}

void StateSources::read(const std::string& param, int32_t kind, const Extent& extent,
                        const std::string& what, const Take& take) {
  std::vector<std::pair<int64_t, int64_t>> taken;  // of the extent: first, end
  for (const Source& source : sources_[{param, kind}]) {
    const int64_t size = element_bytes(source.piece->entry->dtype);
    for (const Overlap& o : overlaps(extent, source.piece->extent)) {
      taken.emplace_back(o.first, o.first + o.count);
      for (int64_t done = 0; done < o.count; done += kStretch) {
        const int64_t count = std::min(kStretch, o.count - done);
        const auto bytes = source.file->elements(*source.piece, o.second + done, count);
        take(o.first + done, o.element + done, bytes.first(static_cast<size_t>(count * size)));
      }
    }
  }
  std::sort(taken.begin(), taken.end());
  int64_t at = 0;
  for (const auto& [first, end] : taken) {
    MUONRT_REQUIRE(first == at, Status::kCorrupt, what, ": element ", std::min(first, at),
                   " of its local piece is ", first < at ? "in two files" : "in no file",
                   "; the checkpoint is damaged, load another");
    at = end;
  }
  MUONRT_REQUIRE(at == extent.numel(), Status::kCorrupt, what, ": element ", at,
                 " of its local piece is in no file; the checkpoint is damaged, load another");
}

}  // namespace muonrt
