@echo off
rem Sets Chorus up on first use, then trains by flow matching: train_multigpu.bat [N] [options]
rem N GPUs, or all; the options are those of train_flow_matching.py.
setlocal EnableExtensions DisableDelayedExpansion
set "CHORUS_SCRIPT=train_multigpu.py"
set "CHORUS_SETUP="
rem Not by call, which would read the options a second time and change those with a percent sign or a caret.
"%~dp0start.bat" %*
