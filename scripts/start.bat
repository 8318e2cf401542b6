@echo off
rem What start-ui.bat and start-multi-gpu.bat end in: finds Python, sets Chorus up, hands the options over.
rem CHORUS_SCRIPT: the script beside this file that gets them. CHORUS_SETUP: options of setup_env.py.
rem The current folder stays, so that relative paths in the options hold.
rem Delayed expansion stays off: it would eat exclamation marks in paths and options.
setlocal EnableExtensions DisableDelayedExpansion
set "CODE=1"

rem Python may be a batch file (pyenv has such), which never comes back without call. Call reads its line twice: the
rem doubled percent signs, and the change of folder below, keep paths out of the first reading.
if not defined PYTHON goto :look
set PYTHON_COMMAND="%%PYTHON%%"
call :will_do
if not errorlevel 1 goto :found
echo PYTHON="%PYTHON%" is not a working Python 3.10 to 3.14; set it to one, or unset it to let Chorus look. 1>&2
goto :end

:look
rem The one that Windows starts comes first; where PyTorch is not built for it, another that is installed beside it.
rem The Python install manager is not to download one that nobody asked for.
set "PYTHON_MANAGER_AUTOMATIC_INSTALL=false"
set "PYTHON_COMMAND="
for %%C in ("py -3" "py -3.13" "py -3.12" "py -3.11" "py -3.10" "py -3.14" "python") do call :try %%C
if defined PYTHON_COMMAND goto :found
echo Chorus needs Python 3.10 to 3.14 and found none; install one from https://www.python.org and start again. 1>&2
goto :end

:found
pushd "%~dp0.."
call %PYTHON_COMMAND% scripts\setup_env.py %CHORUS_SETUP%
set "CODE=%ERRORLEVEL%"
popd
if not "%CODE%"=="0" goto :end
"%~dp0..\.venv\Scripts\python.exe" "%~dp0%CHORUS_SCRIPT%" %*
set "CODE=%ERRORLEVEL%"
if "%CODE%"=="0" if "%CHORUS_SCRIPT%"=="train_ui.py" exit /b 0

:end
rem A double click closes the terminal with the script: keep what it says readable. The command line of this cmd ends
rem in the script and an empty list of options then. Delayed expansion leaves its quotes and ampersands alone.
setlocal EnableDelayedExpansion
set "LINE=!CMDCMDLINE!"
if not defined LINE exit /b %CODE%
set "LINE=!LINE:"='!"
if "!LINE:~-3!"=="' '" pause
exit /b %CODE%

:try
if defined PYTHON_COMMAND exit /b 0
set "PYTHON_COMMAND=%~1"
call :will_do
if errorlevel 1 set "PYTHON_COMMAND="
exit /b 0

:will_do
call %PYTHON_COMMAND% -c "import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))" >nul 2>&1 <nul
exit /b %ERRORLEVEL%
