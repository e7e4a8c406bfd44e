#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "state/manifest.hpp"

namespace muonrt {

/// The pieces of a checkpoint, and what of them a rank needs. Files are opened when what is needed
/// is not in those that are open: the tables of all, on every rank, are much where ranks are many.
class StateSources {
 public:
  /// @param manifest  stays where it is. @param rank  of `world`: so many ranks read, each from the
  ///     files of its like on.
  StateSources(std::string folder, const Manifest& manifest, int rank, int world);

  /// Calls `take(first, element, bytes)` for stretches of the extent, each once: those from its
  /// element `first` on, which is element `element` of the whole tensor.
  /// @param what  names it in errors. Errors: CORRUPT where elements are missing or there twice, IO
  ///     and CORRUPT naming a file, and as PieceFile::elements.
  using Take =
      std::function<void(int64_t first, int64_t element, std::span<const unsigned char> bytes)>;
  void read(const std::string& param, int32_t kind, const Extent& extent, const std::string& what,
            const Take& take);
  /// What was read is checked again when it is next read.
  void forget_checks();

 private:
  struct Source {
    PieceFile* file;
    const FilePiece* piece;
  };
  /// Of which of its elements something was taken, and how many.
  struct Taken {
    std::vector<std::pair<int64_t, int64_t>> stretches;  // first, end
    int64_t count = 0;
  };
  void take_from(const Source& source, const Extent& extent, const Take& take, Taken& taken);
  void open_next();

  std::string folder_;
  std::map<std::string, const ManifestParam*> params_;  // by name
  std::vector<const FileRecord*> unopened_;             // the next one last
  std::vector<std::unique_ptr<PieceFile>> files_;
  std::map<std::pair<std::string, int32_t>, std::vector<Source>> sources_;
};

}  // namespace muonrt
