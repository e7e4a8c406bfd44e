#pragma once

#include <filesystem>
#include <string>

namespace muonrt::tool {

/// An output folder that is written as NAME.muonrt-tmp and renamed to NAME when it is complete.
/// After a crash, NAME is therefore either the old folder or the new one. If NAME is a symbolic
/// link, the linked folder is replaced. Before a run creates the work folder, it locks the file
/// NAME.muonrt-tmp.lock, which identifies the run. The run removes this file only after the work
/// folder, so a work folder without a lock file belongs to another program.
class OutputFolder {
 public:
  /// Removes the files of a killed run, and creates the work folder. Throws std::runtime_error if
  /// the path exists but is not a replaceable folder, or if the folder cannot be created or
  /// replaced. Also throws if another run is writing to the folder; the message identifies that
  /// run.
  /// @param option    the command-line option that names the folder, for messages.
  /// @param replaces  whether to replace a folder that an earlier OutputFolder has written, if it
  ///     has no other files and no file has changed. An empty folder is always replaced.
  OutputFolder(std::string option, const std::string& path, bool replaces);
  /// Removes the work folder if commit() has not renamed it.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  /// Returns the work folder, to which the caller writes files. The path depends only on `path`, so
  /// every process can compute it.
  static std::string work_path(const std::string& path);
  const std::string& work_path() const { return work_; }
  /// Returns whether the path of a file is inside the folder.
  bool contains(const std::string& file) const;
  /// Renames the work folder. Call this function when all files are on disk. Throws
  /// std::runtime_error if the target has changed since this object was created, or if the rename
  /// fails. The work folder then remains, and the error names it.
  void commit();

 private:
  bool lock();
  void require_replaceable() const;
  std::string checked_state() const;
  void try_exchange() const;
  void exchange();
  void discard() noexcept;
  [[noreturn]] void keep(const std::string& problem);
  [[noreturn]] void fail_changed() const;
  [[noreturn]] void fail(const std::string& problem) const;

  std::string option_, work_, lock_path_;
  std::filesystem::path target_;
  bool replaces_;
  std::string run_;     // identifies this run in the lock file
  std::string before_;  // state of `target_`; "" if it is missing or empty
  /// Descriptor of the file `lock_path_`, which is open and locked.
  struct Lock {
    int file = -1;
    ~Lock() { release(); }
    void release();
  } lock_;
  bool owns_work_ = false;  // whether this object must remove the work folder
};

}  // namespace muonrt::tool
